"""Predict steps instead of computing them: the same scheduler in virtual time, on any device of the hardware table.

A step reads the weights once, however many requests it has, and the keys and values of all requests. It does the
arithmetic of its tokens. `RooflineCost` takes the longer of the two times at the rates of the device's data sheet, so
it is a lower bound, which `reached` can scale. `KernelCost` adds up the times of the step's kernels, which are fitted
to published measurements, and `LatentKernelCost` does so for DeepSeek-V3. `fit` learns the cost of a step from the
steps of a real engine, and `FittedCost.sampled` draws times that spread as those did.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.batching.simulated.executor import SimulatedExecutor
    from threeloops.product.batching.simulated.fitting import FittedCost, fit
    from threeloops.product.batching.simulated.kernels import KernelCost
    from threeloops.product.batching.simulated.latent import LatentKernelCost, LatentModel
    from threeloops.product.batching.simulated.roofline import RooflineCost
    from threeloops.product.batching.simulated.spread import Spread
    from threeloops.product.batching.simulated.steps import Cost, StepShape
else:
    import_on_demand(__name__)

__all__ = [
    "Cost", "FittedCost", "KernelCost", "LatentKernelCost", "LatentModel", "RooflineCost", "SimulatedExecutor",
    "Spread", "StepShape", "fit",
]  # fmt: skip
