"""The costs of a training step as a sum of kernels, each predicted by constants fitted to published measurements.

>>> costs = KernelCosts("H100 SXM", Assumptions(power=500 / 700))
>>> step_time(LLAMA_8B, h100_node(), plan, costs).seconds
>>> plans(LLAMA_8B, h100_node(), gpus=64, batch=256, sequence=8192, costs_of=costs)[0].plan

`Assumptions` names every value that the published tables do not hold, and where it comes from. None was fitted to a
training run, but three were chosen after seeing how far runs were off (docs/predictions.md names them).
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.by_kernels.assumptions import Assumptions
    from threeloops.training.by_kernels.kernels import KernelCosts, Kernels, Passes
    from threeloops.training.by_kernels.published import SOURCES, published_runs, seconds_by_kernels
else:
    import_on_demand(__name__)

__all__ = ["Assumptions", "KernelCosts", "Kernels", "Passes", "SOURCES", "published_runs", "seconds_by_kernels"]
