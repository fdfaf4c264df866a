"""Pipeline schedules beside torch's: the tables of torch.distributed.pipelining, simulated by our simulator; and steps
on gloo processes, as predicted before.

Makespans are computed, so one sample is enough. Torch's runtimes are not compared: only the order of actions is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from threeloops.training.cluster import RankFailed, run_on_processes
from threeloops.training.pipeline import (
    Action,
    Durations,
    Schedule,
    Timeline,
    gpipe,
    interleaved,
    most_in_flight,
    one_f_one_b,
    run_schedule,
    simulate,
    zb_h1,
    zb_v,
)
from torch.distributed.pipelining import schedules as torchs

from benchmarks.result import Prediction, Series, Unmeasured

__all__ = ["PAIRS", "Pair", "pipeline_facts", "pipeline_predictions", "pipeline_rows", "torch_table"]

OURS = "threeloops.training.pipeline"
COSTS = {
    "F, I, W = 1, 1, 1": (Durations(1.0, 1.0, 1.0), 0.0),
    "F, I, W = 1, 1.2, 0.8": (Durations(1.0, 1.2, 0.8), 0.0),
    "F, I, W = 1, 1, 1 and transfers of 0.1": (Durations(1.0, 1.0, 1.0), 0.1),
}
"""Slots of each kind of action; a whole backward takes I + W."""
SHOWN = ((4, 8), (8, 8), (8, 32), (16, 64))
"""Ranks and microbatches of the rows; all of them up to 16 and 64 are counted in the facts."""


RANKS, WIDTH = 4, 64
SLEEPS = Durations(30e-3, 30e-3, 30e-3)
MEASURED = {
    "GPipe": gpipe(RANKS, 8),
    "1F1B": one_f_one_b(RANKS, 8),
    "interleaved 1F1B": interleaved(RANKS, 8),
    "ZB-H1": zb_h1(RANKS, 8),
    "ZB-V": zb_v(RANKS, 8),
}


class Pair(NamedTuple):
    """One of our schedules and one of torch's, with as many stages per rank."""

    ours: Callable[[int, int], Schedule]
    theirs: str
    chunks: int

    @property
    def name(self) -> str:
        return f"{self.theirs}, {self.chunks} stage{'s' * (self.chunks > 1)} per rank"


PAIRS = (
    Pair(gpipe, "ScheduleGPipe", 1),
    Pair(one_f_one_b, "Schedule1F1B", 1),
    Pair(lambda p, m: interleaved(p, m, 2), "ScheduleInterleaved1F1B", 2),
    Pair(lambda p, m: interleaved(p, m, 4), "ScheduleInterleaved1F1B", 4),
    Pair(zb_h1, "ScheduleInterleavedZeroBubble", 1),
    Pair(zb_v, "ScheduleInterleavedZeroBubble", 2),
    Pair(zb_v, "ScheduleZBVZeroBubble", 2),
)


def pipeline_rows() -> list[Series]:
    """Makespans and memory of our schedules beside torch's, for the sizes of `SHOWN`."""
    rows = []
    for pair in PAIRS:
        for ranks, microbatches in SHOWN:
            ours = pair.ours(ranks, microbatches)
            theirs = torch_table(pair.theirs, ranks, microbatches, pair.chunks)
            size = f"{pair.name}, {ranks} ranks, {microbatches} microbatches"
            both = (OURS, ours), (f"torch {pair.theirs}", theirs)
            for what, (durations, transfer) in COSTS.items():
                for by, schedule in both:
                    seconds = simulate(schedule, durations, transfer).seconds
                    rows.append(Series(f"{size}: {what}", by, "slots", (seconds,), peer=by != OURS))
            for by, schedule in both:
                peak = max(most_in_flight(row) for row in schedule.rows)
                rows.append(Series(f"{size}: activations kept", by, "", (peak,), peer=by != OURS))
    return rows


def pipeline_facts(ranks: Sequence[int] = range(1, 17), microbatches: Sequence[int] = range(1, 65)) -> dict[str, Any]:
    """Count, for each pair and all sizes that both allow, how often ours is shorter, as long, and longer, by how much
    at most, and whether torch's own table of the schedule can be executed."""
    facts: dict[str, Any] = {}
    for pair in PAIRS:
        counts = {what: {"shorter": 0, "as long": 0, "longer": 0, "at most longer by": 0.0} for what in COSTS}
        compared = 0
        for p, m in product(ranks, microbatches):
            try:
                ours, theirs = pair.ours(p, m), torch_table(pair.theirs, p, m, pair.chunks)
            except ValueError:
                continue
            compared += 1
            for what, (durations, transfer) in COSTS.items():
                longer = simulate(ours, durations, transfer).seconds / simulate(theirs, durations, transfer).seconds - 1
                which = "as long" if abs(longer) < 1e-9 else "longer" if longer > 0 else "shorter"
                counts[what][which] += 1
                counts[what]["at most longer by"] = max(counts[what]["at most longer by"], longer * (longer > 1e-9))
        facts[pair.name] = {"compared": compared, **counts}
    return facts


def torch_table(name: str, ranks: int, microbatches: int, chunks: int) -> Schedule:
    """The order of actions of one of torch's schedules: of those with one stage per rank as they execute it (the table
    that Schedule1F1B prints names microbatches that there are not), of the others from their table without idle slots.

    Raises ValueError where torch does not allow these numbers.
    """
    logging.getLogger(torchs.__name__).setLevel(logging.ERROR)
    kind = getattr(torchs, name)
    if issubclass(kind, torchs.PipelineScheduleSingle):
        bare = type(name, (kind,), {"_initialize_stage": lambda self, *arguments: None})
        rows = []
        for rank in range(ranks):
            stage = _Recorder(rank, ranks)
            bare(stage, microbatches, loss_fn=lambda output, target: output)._step_microbatches()
            rows.append(stage.row)
        return Schedule(rows, tuple(range(ranks)), microbatches)
    stage = SimpleNamespace(num_stages=ranks * chunks, group_size=ranks, group_rank=0, submod=None)
    made = type(name, (kind,), {"_prepare_schedule_with_comms": lambda self, actions: None})(
        [stage] * chunks, microbatches
    )
    table = {rank: [each for each in row if each is not None] for rank, row in made.pipeline_order.items()}
    rows = [[Action(each[1].value, each[0], each[2]) for each in table[rank]] for rank in range(ranks)]
    return Schedule(rows, tuple(made.stage_index_to_group_rank[s] for s in range(ranks * chunks)), microbatches)


class _Recorder:
    """A stage for torch's own loop that computes and sends nothing, and keeps what it was told to do."""

    is_last, has_backward = False, True

    def __init__(self, rank: int, ranks: int) -> None:
        self.stage_index, self.num_stages = rank, ranks
        self.row: list[Action] = []

    def _no_messages(self, microbatch: int) -> list[Any]:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = _no_messages

    def forward_one_chunk(self, microbatch: int, *arguments: Any, **options: Any) -> None:
        self.row.append(Action("F", self.stage_index, microbatch))

    def backward_one_chunk(self, microbatch: int, **options: Any) -> None:
        self.row.append(Action("B", self.stage_index, microbatch))

    def perform_reduce_grad(self, scale: int) -> None:
        pass


# On processes


def pipeline_predictions(rounds: int = 3, seconds: float = 120.0) -> list[Prediction]:
    """The simulator's step beside the measured one, on gloo processes of this machine that sleep for each action.

    Predicted without transfers: what is measured beyond it are messages, and what the machine does meanwhile. Raises
    Unmeasured where the processes fail, or take longer than `seconds`.
    """
    try:
        ranks = run_on_processes("gloo", RANKS, _sleeping_steps, rounds, seconds=seconds)
    except RankFailed as error:
        raise Unmeasured(f"pipelines on gloo: {error}") from None
    found = []
    for number, (name, schedule) in enumerate(MEASURED.items()):
        predicted = simulate(schedule, SLEEPS)
        for turn in range(rounds):
            measured = Timeline([steps[number * rounds + turn] for steps in ranks])
            case = f"{name}, {RANKS} ranks, {schedule.microbatches} microbatches, round {turn + 1}"
            found.append(Prediction("pipeline step", case, "gloo", "s", predicted.seconds, measured.seconds))
    return found


def _sleeping_steps(rounds: int) -> list[Any]:
    """This rank's timed rows, schedule by schedule and round by round. All processes read one monotonic clock."""
    torch.set_num_threads(1)
    stream, found = torch.empty(4, WIDTH), []
    for schedule in MEASURED.values():
        own = {stage: torch.nn.Linear(WIDTH, WIDTH) for stage in schedule.stages_of(dist.get_rank())}
        batch = [torch.ones(4, WIDTH)] * schedule.microbatches
        for turn in range(-1, rounds):  # the first one connects the processes
            dist.barrier()
            step = run_schedule(schedule, own, batch, batch, torch.nn.functional.mse_loss, stream, durations=SLEEPS)
            found += [step.row] if turn >= 0 else []
    return found
