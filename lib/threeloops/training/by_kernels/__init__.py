"""The time of a training step as the sum of its kernels, each predicted by constants fitted to published measurements.

It has the structure of `planning.step_time`, with kernels and collectives in place of one efficiency for the machine.
What the published tables do not hold is assumed: `Assumptions` names each value and where it comes from. None of them
was fitted to a training run.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.by_kernels.assumptions import Assumptions
    from threeloops.training.by_kernels.step import KernelStep, kernel_step
else:
    import_on_demand(__name__)

__all__ = ["Assumptions", "KernelStep", "kernel_step"]
