"""Check whether a schedule can be executed. If not, the error names the first wrong step and the reason.

This also works for the beginning of a schedule, which is refused as soon as no continuation can be executed. So an
editor can refuse a move and say why, in the manner of LLM-Training-Puzzles (Rush 2023).
"""

from bisect import bisect_left
from collections import Counter, deque
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from threeloops.training.pipeline.schedule import Action, Kind, Schedule

__all__ = ["IllegalSchedule", "check", "most_in_flight"]


class IllegalSchedule(ValueError):
    """A schedule that cannot be executed: the first action that is wrong, and why. `position` counts the actions of
    `rank` from 0; it is the length of the row where an action is missing."""

    def __init__(self, rank: int, position: int, action: Action, why: str) -> None:
        super().__init__(f"rank {rank}, position {position}: {action} {why}")
        self.rank = rank
        self.position = position
        self.action = action
        self.why = why


def check(schedule: Schedule, *, complete: bool = True, limit: int | None = None) -> None:
    """Check that each stage does each microbatch forward once and backward once, on its rank, without deadlock.

    Args:
        complete: False if the rows may be the beginnings of a schedule's rows. They are legal if they can be completed.
        limit: the most activations that a rank may keep, see `most_in_flight`.

    Raises:
        IllegalSchedule: names the first illegal step: reading all rows position by position, the first with which no
            continuation is legal. If there is none, it names what is missing.
    """
    wrong = [error for rank in range(schedule.ranks) if (error := _wrong_in_row(schedule, rank, limit))]
    first = min(wrong, key=lambda error: (error.position, error.rank), default=None)
    steps = sorted((position, rank) for rank, row in enumerate(schedule.rows) for position in range(len(row)))
    if first:
        steps = steps[: steps.index((first.position, first.rank))]

    def stuck(n: int) -> bool:
        """Return whether the first n steps are a deadlock, whatever follows."""
        return _deadlocked(_beginning(schedule, steps[:n]))

    if stuck(len(steps)):
        end = bisect_left(range(len(steps)), True, key=stuck)
        position, rank = steps[end - 1]
        action = schedule.rows[rank][position]
        raise IllegalSchedule(
            rank, position, action, _why_deadlock(schedule, _beginning(schedule, steps[:end]), action)
        )
    if first:
        raise first
    for rank in range(schedule.ranks if complete else 0):
        for missing in _missing(schedule, rank):
            raise IllegalSchedule(rank, len(schedule.rows[rank]), missing, "is missing")


def most_in_flight(row: list[Action], weights: list[float] | None = None) -> float:
    """Return the most activations that a rank keeps at once: those of a forward, until its backward has been done (both
    parts, if it has two). With `weights`, the activations of one microbatch on each stage count this much."""
    now = most = 0.0
    for action in row:
        change = {"F": 1, "I": 0}.get(action.kind, -1)
        now += change * (weights[action.stage] if weights else 1)
        most = max(most, now)
    return most


def _wrong_in_row(schedule: Schedule, rank: int, limit: int | None) -> IllegalSchedule | None:
    """Return the first action of a row that its place, or an earlier action in the row, makes illegal."""
    before: dict[tuple[Kind, int, int], int] = {}
    in_flight = 0
    for position, action in enumerate(schedule.rows[rank]):
        in_flight += {"F": 1, "I": 0}.get(action.kind, -1)
        if why := _misplaced(schedule, rank, action) or _out_of_turn(action, before):
            return IllegalSchedule(rank, position, action, why)
        if limit is not None and in_flight > limit:
            return IllegalSchedule(rank, position, action, f"is number {in_flight} in flight: at most {limit} may be")
        before[action] = position
    return None


def _misplaced(schedule: Schedule, rank: int, action: Action) -> str:
    if action.kind not in ("F", "B", "I", "W"):
        return "is none of F, B, I and W"
    if not 0 <= action.stage < schedule.stages:
        return f"has no such stage: expected 0 to {schedule.stages - 1}"
    if not 0 <= action.microbatch < schedule.microbatches:
        return f"has no such microbatch: expected 0 to {schedule.microbatches - 1}"
    if schedule.placement[action.stage] != rank:
        return f"is not this rank's: stage {action.stage} is on rank {schedule.placement[action.stage]}"
    return ""


def _out_of_turn(action: Action, before: dict[tuple[Kind, int, int], int]) -> str:
    """Why an action may not follow those `before` it, of its own stage and microbatch."""
    _, stage, microbatch = action
    forward = ("F", stage, microbatch)
    backward = ("B", stage, microbatch)
    inputs = ("I", stage, microbatch)
    if action in before:
        return f"is done twice: first at position {before[action]}"
    if action.kind == "F":
        return ""
    if forward not in before:
        return "comes before its forward"
    if action.kind != "B" and backward in before:
        return f"comes after the whole backward at position {before[backward]}, which includes it"
    if action.kind == "B" and inputs in before:
        return f"comes after its input gradient at position {before[inputs]}: expected its weight gradient alone"
    if action.kind == "W" and inputs not in before:
        return "comes before its input gradient"
    return ""


def _missing(schedule: Schedule, rank: int) -> list[Action]:
    """Return the actions that the row lacks: forwards first, then backwards, as whole ones if none has begun."""
    row = set(schedule.rows[rank])
    every = [(stage, i) for stage in schedule.stages_of(rank) for i in range(schedule.microbatches)]
    forwards = [Action("F", *key) for key in every if ("F", *key) not in row]
    backwards = [
        Action("W" if ("I", *key) in row else "B", *key)
        for key in every
        if ("B", *key) not in row and ("W", *key) not in row
    ]
    return forwards + backwards


# Deadlocks


def _beginning(schedule: Schedule, steps: list[tuple[int, int]]) -> Schedule:
    """Return a schedule with only the first steps of each row."""
    lengths = Counter(rank for _, rank in steps)
    return replace(schedule, rows=[row[: lengths[rank]] for rank, row in enumerate(schedule.rows)])


def _waits(schedule: Schedule) -> dict[Action, list[Action]]:
    """Return the actions that each action waits for: the one before it in its row, and the stage whose result it needs.
    An action that no row has yet will come after the last one in its rank's row."""
    waits: dict[Action, list[Action]] = {}
    for rank, row in enumerate(schedule.rows):
        for before, action in zip([None, *row], row, strict=False):
            waits[_result(action)] = [_result(before)] if before else []
        for action in _missing(schedule, rank):
            waits[_result(action)] = [_result(row[-1])] if row else []
    for action, needed in waits.items():
        if (source := schedule.source(action)) is not None:
            needed.append(Action(action.kind, source, action.microbatch))
    return waits


def _result(action: Action) -> Action:
    """Name an action by its result: the gradient of a stage's input comes from B or from I."""
    return Action("B", action.stage, action.microbatch) if action.kind == "I" else action


def _deadlocked(schedule: Schedule) -> bool:
    try:
        TopologicalSorter(_waits(schedule)).prepare()
    except CycleError:
        return True
    return False


def _why_deadlock(schedule: Schedule, beginning: Schedule, action: Action) -> str:
    """The shortest circle in which an action of the beginning of a schedule waits for itself, in words."""
    waits = _waits(beginning)
    start = _result(action)
    waited_for: dict[Action, Action] = {}  # by whom first
    todo = deque([start])
    while start not in waited_for:
        waiting = todo.popleft()
        for needed in waits[waiting]:
            if needed not in waited_for:
                waited_for[needed] = waiting
                todo.append(needed)
    circle = [start]
    while (waiting := waited_for[circle[-1]]) != start:
        circle.append(waiting)
    circle = [start, *circle[:0:-1], start]
    named = {_result(action): action for row in schedule.rows for action in row} | {start: "it"}
    words: list[str] = []
    needed = start
    for current, following in pairwise(circle):
        if following == (current.kind, schedule.source(current), current.microbatch):
            on = schedule.placement[current.stage]
            words += [f"on rank {on} comes after {named.get(current, current)}"] if needed != current else []
            words.append(f"waits for {named.get(following, following)}")
            needed = following
    if needed != start:
        words.append(f"on rank {schedule.placement[start.stage]} comes after it")
    return ", which ".join(words)
