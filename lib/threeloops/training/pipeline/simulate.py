"""Simulate when each action of a schedule begins and ends, given durations and the time of transfers.

Every rank works through its row. An action begins when the action before it has ended and its input has arrived, and
its result leaves when it ends. A transfer does not occupy the rank.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from threeloops.training.cluster.machine.ports import Ports
from threeloops.training.cluster.machine.topology import Topology
from threeloops.training.pipeline.check import check, most_in_flight
from threeloops.training.pipeline.schedule import Action, Kind, Schedule

__all__ = ["Durations", "Timed", "Timeline", "Transfers", "simulate"]


@dataclass(frozen=True)
class Durations:
    """Seconds of an action, one number for all stages or one per stage. A whole backward takes as long as its two
    parts, unless `backward` says otherwise."""

    forward: float | Sequence[float] = 1.0
    input_gradient: float | Sequence[float] = 1.0
    weight_gradient: float | Sequence[float] = 1.0
    backward: float | Sequence[float] | None = None

    def seconds(self, kind: Kind, stages: int) -> list[float]:
        """Return the duration of this kind of action on each of `stages` stages."""
        if kind == "B" and self.backward is None:
            parts = self.seconds("I", stages), self.seconds("W", stages)
            return [i + w for i, w in zip(*parts, strict=True)]
        name = {"F": "forward", "B": "backward", "I": "input_gradient", "W": "weight_gradient"}[kind]
        given = getattr(self, name)
        per_stage = [given] * stages if isinstance(given, int | float) else list(given)
        if len(per_stage) != stages or not all(0 <= duration < math.inf for duration in per_stage):
            raise ValueError(f"{name} = {given}: expected seconds, 0 or more; one number, or {stages}, one per stage")
        return per_stage


@dataclass(frozen=True)
class Transfers:
    """Transfers on the links of a topology, where they queue for ports as on the virtual cluster."""

    topology: Topology
    sizes: int | Sequence[int]
    """Bytes from each stage to the next, and of the gradient back: one number, or one for each stage but the last."""


class Timed(NamedTuple):
    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The actions of each rank with their start and end in seconds, simulated or measured."""

    rows: list[list[Timed]]

    @cached_property
    def start(self) -> float:
        return min((row[0].start for row in self.rows if row), default=0.0)

    @cached_property
    def seconds(self) -> float:
        """The time from the first start to the last end."""
        return max((row[-1].end for row in self.rows if row), default=0.0) - self.start

    @property
    def idle(self) -> list[float]:
        """Seconds in which each rank had nothing to do."""
        return [self.seconds - sum(timed.end - timed.start for timed in row) for row in self.rows]

    @property
    def bubble(self) -> list[float]:
        """Share of the step in which each rank had nothing to do."""
        return [idle / self.seconds if self.seconds else 0.0 for idle in self.idle]

    def peak(self, weights: list[float] | None = None) -> list[float]:
        """The most activations that each rank keeps at once; see `most_in_flight`."""
        return [most_in_flight([timed.action for timed in row], weights) for row in self.rows]


def simulate(
    schedule: Schedule,
    durations: Durations = Durations(),
    transfers: float | Transfers = 0.0,
    *,
    complete: bool = True,
) -> Timeline:
    """Compute start and end of every action, or, for the beginning of a schedule (not `complete`), of those that can be
    executed so far.

    Args:
        transfers: seconds from one rank to another, independent of other traffic; or the links, which gives the times
            of `run_schedule` on a virtual cluster of this topology.

    Raises:
        IllegalSchedule: the schedule cannot be executed. The message of `check` names the first wrong step and the
            reason.
    """
    seconds = {kind: durations.seconds(kind, schedule.stages) for kind in _STEPS}
    arrival = _arrivals(schedule, transfers)
    if not complete:
        check(schedule, complete=False)
    rows: list[list[Timed]] = [[] for _ in schedule.rows]
    progress = [
        {(s, i): 0 for s in schedule.stages_of(r) for i in range(schedule.microbatches)} for r in range(len(rows))
    ]
    inbox: dict[Action, float] = {}  # when an input is there, by the action that needs it (B stands for I as well)
    leaving: list[tuple[float, int, Action]] = []

    def go_on(rank: int) -> None:
        """Continue to the end of the row, or to an action that cannot begin yet."""
        now = rows[rank][-1].end if rows[rank] else 0.0
        for action in schedule.rows[rank][len(rows[rank]) :]:
            kind, stage, microbatch = action
            before, after = _STEPS.get(kind, _NEVER)
            if progress[rank].get((stage, microbatch)) != before:
                return
            if schedule.source(action) is not None:
                at = inbox.get(Action("F" if kind == "F" else "B", stage, microbatch))
                if at is None:
                    return
                now = max(now, at)
            progress[rank][stage, microbatch] = after
            rows[rank].append(Timed(action, now, now + seconds[kind][stage]))
            now = rows[rank][-1].end
            if (target := schedule.target(action)) is not None:
                wants = Action("F" if kind == "F" else "B", target, microbatch)
                if schedule.placement[target] == rank:
                    inbox[wants] = now
                else:
                    heapq.heappush(leaving, (now, rank, wants))

    for rank in range(len(rows)):
        go_on(rank)
    while leaving:
        ready, rank, wants = heapq.heappop(leaving)
        inbox[wants] = arrival(rank, wants, ready)
        go_on(schedule.placement[wants.stage])
    through = all(len(timed) == len(row) for timed, row in zip(rows, schedule.rows, strict=True))
    if complete and not (through and all(state == _DONE for states in progress for state in states.values())):
        check(schedule)
    return Timeline(rows)


_STEPS: dict[Kind, tuple[int, int]] = {"F": (0, 1), "B": (1, 3), "I": (1, 2), "W": (2, 3)}
"""How far a microbatch has to be on a stage before an action, and how far it is after it."""
_NEVER = (-1, -1)
_DONE = 3


def _arrivals(schedule: Schedule, transfers: float | Transfers) -> Callable[[int, Action, float], float]:
    """Return a function that says when the input of `action`, ready on a rank at some time, is on the action's rank. It
    has to be called in the order of these times."""
    if isinstance(transfers, int | float):
        if not 0 <= transfers < math.inf:
            raise ValueError(f"transfers = {transfers} s: expected 0 or more")
        return lambda rank, action, ready: ready + transfers
    sizes = transfers.sizes if isinstance(transfers.sizes, Sequence) else [transfers.sizes] * (schedule.stages - 1)
    if len(sizes) != schedule.stages - 1:
        raise ValueError(f"{len(sizes)} sizes for {schedule.stages} stages: expected one per stage but the last")
    topology = transfers.topology
    if topology.ranks < schedule.ranks:
        raise ValueError(f"{topology.name} has {topology.ranks} ranks: the schedule needs {schedule.ranks}")
    ports = Ports(topology, [])

    def arrival(rank: int, action: Action, ready: float) -> float:
        pair = rank, schedule.placement[action.stage]
        boundary = action.stage - 1 if action.kind == "F" else action.stage
        return ports.take(pair, sizes[boundary], ready)[1] + topology.routes[pair].latency

    return arrival
