"""The time of an inference engine's step besides that of its kernels."""

from dataclasses import dataclass

from threeloops.inner.predict.silicon.constants import constant

__all__ = ["StepHost"]


@dataclass(frozen=True)
class StepHost:
    """Constants of one inference engine, fitted to published times per output token on H100 and H200."""

    step: float = constant(1e-3, 1e-6, 2e-2)
    """Seconds of the host in every step."""
    sequence: float = constant(1e-5, 1e-8, 1e-3)
    """Seconds of the host for each running sequence."""
    launch: float = constant(1e-6, 1e-8, 2e-5)
    """Seconds from one kernel to the next inside the step's CUDA graph."""
    prompt: float = constant(0.9, 0.3, 1.0)
    """The share of a prompt's time by which it delays the tokens of the other requests."""
