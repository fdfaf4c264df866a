"""Schedules that divide backward in two (Qi et al. 2023, "Zero Bubble Pipeline Parallelism"): only the gradient of the
stage's input (I) is urgent, since the previous stage waits for it. Gradients of the weights (W) fill the bubbles.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from threeloops.training.pipeline.schedule import Action, Kind, Schedule, in_turns

__all__ = ["zb_h1", "zb_v"]


def zb_h1(ranks: int, microbatches: int) -> Schedule:
    """1F1B in which rank r postpones r weight gradients, and computes them at the end, while other ranks still run
    backward (section 2.2 there).

    A rank waits for (p − 1) · (F + I − W), where 1F1B waits for (p − 1) · (F + I + W), if there are at least as many
    microbatches as ranks and W is no longer than F or I. Every rank keeps the activations of up to `ranks`
    microbatches, as the first one of 1F1B does.
    """
    rows = []
    for rank in range(ranks):
        forwards, inputs, weights = (_all(kind, rank, microbatches) for kind in ("F", "I", "W"))
        rows.append(in_turns(ranks - rank - 1, forwards, inputs, [*[None] * rank, *weights]))
    return Schedule(rows, tuple(range(ranks)), microbatches)


def zb_v(ranks: int, microbatches: int) -> Schedule:
    """Two stages per rank, r and 2 · ranks − 1 − r, as on the strokes of a V. The last stage is on the first rank, so
    backward begins where forward began, and no rank waits once it has begun (Qi et al. 2023, section 6; Qi et al. 2024,
    "Pipeline Parallelism with Controllable Memory").

    With F = I = W = 1 for a stage, m microbatches take 6m + ranks − 1, if they are at least as many as ranks. A rank
    keeps 2 · ranks activations of a stage, as much as the first one of 1F1B, whose stages are twice as long.
    """
    rows = [_v_without_weights(rank, ranks, microbatches) for rank in range(ranks)]
    placement = (*range(ranks), *reversed(range(ranks)))
    return _with_weights(Schedule(rows, placement, microbatches), most_in_flight=2 * ranks)


def _v_without_weights(rank: int, ranks: int, microbatches: int) -> list[Action]:
    """The order of F and I on one rank, with a stage on the way down and one on the way up. Turns of microbatches that
    there are not pass."""
    down = rank
    up = 2 * ranks - 1 - rank
    f_down, i_down, f_up, i_up = (iter(_all(kind, stage, microbatches)) for stage in (down, up) for kind in ("F", "I"))
    turns: list[Iterator[Action]] = [
        *[f_down] * (2 * (ranks - rank) - 1),
        *[f_up, f_down] * rank,
        *[f_up, i_up] * (ranks - rank),
        *[f_down, i_down, f_up, i_up] * (microbatches - ranks),
        *[i_down, i_up] * rank,
        *[i_down] * (ranks - rank),
    ]
    return [action for turn in turns if (action := next(turn, None))]


def _with_weights(schedule: Schedule, most_in_flight: int) -> Schedule:
    """Put weight gradients into rows of F and I: wherever a rank would wait if each action took one slot, and before a
    forward that would make it keep more than `most_in_flight` activations."""
    rows: list[list[Action]] = [[] for _ in schedule.rows]
    ahead = [deque(row) for row in schedule.rows]
    owed: list[deque[Action]] = [deque() for _ in schedule.rows]
    in_flight = [0] * schedule.ranks
    done: set[Action] = set()

    def can_begin(rank: int, action: Action) -> bool:
        source = schedule.source(action)
        full = action.kind == "F" and in_flight[rank] == most_in_flight
        return not full and (source is None or action._replace(stage=source) in done)

    while any(ahead) or any(owed):
        slot = []
        for rank, row in enumerate(rows):
            if ahead[rank] and can_begin(rank, ahead[rank][0]):
                row.append(ahead[rank].popleft())
            elif owed[rank]:
                row.append(owed[rank].popleft())
            else:
                continue
            slot.append(row[-1])
            in_flight[rank] += {"F": 1, "W": -1}.get(row[-1].kind, 0)
            if row[-1].kind == "I":
                owed[rank].append(row[-1]._replace(kind="W"))
        done.update(slot)
    return replace(schedule, rows=rows)


def _all(kind: Kind, stage: int, microbatches: int) -> list[Action]:
    return [Action(kind, stage, i) for i in range(microbatches)]
