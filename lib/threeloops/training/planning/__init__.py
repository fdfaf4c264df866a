"""Choose the parallelism of a model on a machine: predict memory and step time, and compare the plans that fit.

>>> plan = Plan(batch=2048, sequence=8192, dp=64, pp=16, tp=8, zero=2)
>>> max(rank.total for rank in memory(LLAMA_405B, plan)) / 2**30     # GiB per GPU
>>> step = step_time(LLAMA_405B, h100_node(), plan)
>>> step.seconds, step.mfu, step.tokens_per_gpu
>>> fastest = plans(LLAMA_405B, h100_node(), gpus=8192, batch=2048, sequence=8192)[0].plan

This is a model of a step in closed form. `pipeline.simulate` follows each action, and the virtual cluster each message.
`PUBLISHED` has runs that others have measured, and `python -m benchmarks parallel` compares the predictions with them.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.planning.accuracy import StepError, step_error
    from threeloops.training.planning.memory import ALLOCATED_SHARE, Memory, memory
    from threeloops.training.planning.model import Transformer
    from threeloops.training.planning.plan import Machine, Plan
    from threeloops.training.planning.published import (
        LLAMA_8B,
        LLAMA_70B,
        LLAMA_405B,
        PUBLISHED,
        PublishedRun,
        a100_node,
        h100_node,
        node,
    )
    from threeloops.training.planning.search import plans
    from threeloops.training.planning.time import Costs, CostsOf, Rates, StepTime, step_time
else:
    import_on_demand(__name__)

__all__ = [
    "ALLOCATED_SHARE", "Costs", "CostsOf", "LLAMA_405B", "LLAMA_70B", "LLAMA_8B", "Machine", "Memory", "PUBLISHED",
    "Plan", "PublishedRun", "Rates", "StepError", "StepTime", "Transformer", "a100_node", "h100_node", "memory", "node",
    "plans", "step_error", "step_time",
]  # fmt: skip
