"""Published training runs by the sum of their kernels, with what their sources say about them."""

from types import MappingProxyType

from threeloops.training.by_kernels.assumptions import Assumptions
from threeloops.training.by_kernels.kernels import KernelCosts
from threeloops.training.planning.published import PublishedRun
from threeloops.training.planning.time import step_time

__all__ = ["SOURCES", "seconds_by_kernels"]

SOURCES = MappingProxyType(
    {
        "megatron": Assumptions(attention="unfused"),
        "llama3": Assumptions(attention="fastest"),
        "torchtitan": Assumptions(power=500 / 700, bandwidth=2.4e12),
    }
)
"""The assumptions about each source, which follow from it alone. No constant was fitted to a run.

Megatron's attention of 2021 writes the scores. Llama 3's paper does not name its kernel, but it appeared in the month
of FlashAttention-3. torchtitan called torch's FlashAttention-2, on cards of 500 W.
"""


def seconds_by_kernels(run: PublishedRun, assumed: Assumptions | None = None) -> float:
    """Return the seconds of a run's step, with the assumptions of its source unless others are given."""
    costs = KernelCosts(run.device, assumed or SOURCES[run.source])
    return step_time(run.model, run.machine, run.plan, costs).seconds
