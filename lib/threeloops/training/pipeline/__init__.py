"""Pipeline parallelism: each rank has some of the layers, and microbatches pass through them. Schedules are data.

>>> schedule = one_f_one_b(ranks=4, microbatches=8)
>>> check(schedule)
>>> print(schedule)
>>> predicted = simulate(schedule, Durations(forward=1e-3, backward=2e-3), transfers=50e-6)
>>> predicted.seconds, predicted.bubble, predicted.peak()
>>> gantt(predicted)

On each rank, with its own stages of the model:

>>> stages = gpt_stages(model, schedule.stages)
>>> mine = {stage: stages[stage] for stage in schedule.stages_of(dist.get_rank())}
>>> stream = torch.empty(batch, tokens, config.width)
>>> step = run_schedule(schedule, mine, inputs, targets, stages[-1].loss, stream)
>>> step.loss, optimizer.step()
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.pipeline.check import IllegalSchedule, check, most_in_flight
    from threeloops.training.pipeline.draw import gantt
    from threeloops.training.pipeline.runtime import StepResult, run_schedule
    from threeloops.training.pipeline.schedule import (
        Action,
        Schedule,
        bubble_share,
        gpipe,
        interleaved,
        one_f_one_b,
    )
    from threeloops.training.pipeline.simulate import Durations, Timed, Timeline, Transfers, simulate
    from threeloops.training.pipeline.stages import GPTStage, gpt_stages, input_backward
    from threeloops.training.pipeline.zero_bubble import zb_h1, zb_v
else:
    import_on_demand(__name__)

__all__ = [
    "Action", "Durations", "GPTStage", "IllegalSchedule", "Schedule", "StepResult", "Timed", "Timeline", "Transfers",
    "bubble_share", "check", "gantt", "gpipe", "gpt_stages", "input_backward", "interleaved",
    "most_in_flight", "one_f_one_b", "run_schedule", "simulate", "zb_h1", "zb_v",
]  # fmt: skip
