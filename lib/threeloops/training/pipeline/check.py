"""Whether a schedule can be executed, and where it cannot, which step is wrong and why.

Also for the beginning of a schedule: it is refused as soon as no continuation can be executed, so an editor can refuse
a move and say why, in the manner of LLM-Training-Puzzles (Rush 2023).
"""

from graphlib import CycleError, TopologicalSorter

from threeloops.training.pipeline.schedule import Action, Schedule

__all__ = ["IllegalSchedule", "check", "most_in_flight"]


class IllegalSchedule(ValueError):
    """A schedule that cannot be executed: the first action that is wrong, and why. `position` counts the actions of
    `rank` from 0; it is the length of the row where an action is missing."""

    def __init__(self, rank: int, position: int, action: Action, why: str) -> None:
        super().__init__(f"rank {rank}, position {position}: {action} {why}")
        self.rank, self.position, self.action, self.why = rank, position, action, why


def check(schedule: Schedule, *, complete: bool = True, limit: int | None = None) -> None:
    """Whether each stage does each microbatch forward once and backward once, on its rank, without deadlock.

    Args:
        complete: without it, the rows may be the beginnings of a schedule's, and are legal if it can be completed.
        limit: as many activations may a rank keep at most, see `most_in_flight`.

    Raises:
        IllegalSchedule: naming an action that cannot be where it stands: one that contradicts its own row, the
            one in the earliest position; else one that waits for itself; else one that is missing.
    """
    wrong = [found for rank in range(schedule.ranks) if (found := _wrong_in_row(schedule, rank, limit))]
    if wrong:
        raise min(wrong, key=lambda each: (each.position, each.rank))
    if deadlock := _deadlock(schedule):
        raise deadlock
    if complete:
        for rank, row in enumerate(schedule.rows):
            for missing in _missing(schedule, rank):
                raise IllegalSchedule(rank, len(row), missing, "is missing")


def most_in_flight(row: list[Action], weights: list[float] | None = None) -> float:
    """The most activations that a rank keeps at once: those of a forward, until its backward has been done (of one in
    two parts, both). With `weights`, the activations of one microbatch on each stage count so much."""
    now = most = 0.0
    for action in row:
        change = {"F": 1, "I": 0}.get(action.kind, -1)
        now += change * (weights[action.stage] if weights else 1)
        most = max(most, now)
    return most


def _wrong_in_row(schedule: Schedule, rank: int, limit: int | None) -> IllegalSchedule | None:
    """The first action of a row that its place, or what stands before it in the row, makes illegal."""
    before: dict[Action, int] = {}
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


def _out_of_turn(action: Action, before: dict[Action, int]) -> str:
    """Why an action may not follow those `before` it, of its own stage and microbatch."""
    forward, backward, inputs = (action._replace(kind=kind) for kind in ("F", "B", "I"))
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
    """What the row does not have yet: forwards first, then backwards (whole where none has begun)."""
    row = set(schedule.rows[rank])
    every = [(stage, i) for stage in schedule.stages_of(rank) for i in range(schedule.microbatches)]
    forwards = [forward for key in every if (forward := Action("F", *key)) not in row]
    backwards = [
        Action("W" if Action("I", *key) in row else "B", *key)
        for key in every
        if Action("B", *key) not in row and Action("W", *key) not in row
    ]
    return forwards + backwards


def _deadlock(schedule: Schedule) -> IllegalSchedule | None:
    """Actions that wait for one another in a circle, if there are any.

    An action waits for the one before it in its row, and for the stage whose result it needs. One that no row has yet
    will come after the last of its rank's row.
    """
    actions: dict[Action, tuple[int, int, Action]] = {}
    graph: dict[Action, list[Action]] = {}
    for rank, row in enumerate(schedule.rows):
        for position, action in enumerate(row):
            actions[_result(action)] = rank, position, action
            graph[_result(action)] = [_result(row[position - 1])] if position else []
        for action in _missing(schedule, rank):
            actions[_result(action)] = rank, len(row), action
            graph[_result(action)] = [_result(row[-1])] if row else []
            if action.kind == "B":
                graph[action].append(action._replace(kind="F"))
    for action, waits_for in graph.items():
        if (source := schedule.source(action)) is not None:
            waits_for.append(action._replace(stage=source))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return _named(schedule, actions, error.args[1][:0:-1])
    return None


def _result(action: Action) -> Action:
    """Under one name what gives the same result: the gradient of a stage's input comes from B or from I."""
    return action._replace(kind="B") if action.kind == "I" else action


def _named(schedule: Schedule, actions: dict[Action, tuple[int, int, Action]], circle: list[Action]) -> IllegalSchedule:
    """A deadlock in words. In `circle` each action waits for the next one, and the last for the first."""
    after = dict(zip(circle, [*circle[1:], circle[0]], strict=True))

    def needs_next(action: Action) -> bool:
        """Whether it needs the result of the next one, instead of only standing behind it in a row."""
        return after[action] == (action.kind, schedule.source(action), action.microbatch)

    def place(action: Action) -> tuple[int, int]:
        rank, position, _ = actions[action]
        return position, rank

    written = [a for a in circle if needs_next(a) and a in map(_result, schedule.rows[place(a)[1]])]
    action = start = min(written, key=place)
    steps: list[str] = []
    while not steps or action != start:
        needed = turn = after[action]
        while not needs_next(turn):
            turn = after[turn]
        step = f"waits for {'it' if needed == start else actions[needed][2]}"
        if turn != needed:
            rank, _, named = actions[turn]
            step += f", which on rank {rank} comes after {'it' if turn == start else named}"
        steps.append(step)
        action = turn
    rank, position, named = actions[start]
    return IllegalSchedule(rank, position, named, ", which ".join(steps))
