"""Many requests on one model: the scheduler that chooses each step, the blocks that they share, and the engine.

>>> engine = Engine(ModelRunner(model, blocks=1024, block_size=16), BlockManager(1024, 16), CHUNKED)
>>> engine.run(requests)                                # now each has its output and its token_times
>>> async with AsyncEngine(engine) as front:            # the same as a service
...     async for token in front.generate(request):
...         ...
>>> clock = VirtualClock()                              # the same as a prediction, for a device that nobody here has
>>> cost = RooflineCost(config, accelerator("H100"))
>>> Engine(SimulatedExecutor(clock, cost), BlockManager(1024, 16), CHUNKED, clock).run(requests)

`scheduler.py` chooses what a step computes, by the rules of `policy.py`, and `engine.py` lets an executor compute it. A
trace of requests is replayed by `threeloops.product.loadgen`.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.batching.asynchronous import AsyncEngine
    from threeloops.product.batching.blocks import BlockManager, OutOfBlocks
    from threeloops.product.batching.engine import Engine, Executor
    from threeloops.product.batching.fairness import TokenCounters
    from threeloops.product.batching.policy import (
        CHUNKED,
        CONTINUOUS,
        DYNAMIC,
        POLICIES,
        STATIC,
        Order,
        Policy,
        by_arrival,
        by_priority,
    )
    from threeloops.product.batching.prefix_cache import block_keys
    from threeloops.product.batching.scheduler import Scheduler
    from threeloops.product.batching.simulated import (
        FittedCost,
        KernelCost,
        RooflineCost,
        SimulatedExecutor,
        StepShape,
        fit,
    )
    from threeloops.product.request import EngineStopped, RequestFailed
else:
    import_on_demand(__name__)

__all__ = [
    "CHUNKED", "CONTINUOUS", "DYNAMIC", "POLICIES", "STATIC", "AsyncEngine", "BlockManager", "Engine",
    "EngineStopped", "Executor", "FittedCost", "KernelCost", "Order", "OutOfBlocks", "Policy", "RequestFailed",
    "RooflineCost", "Scheduler", "SimulatedExecutor", "StepShape", "TokenCounters", "block_keys", "by_arrival",
    "by_priority", "fit",
]  # fmt: skip
