"""A day of a fleet that a reader's own policies run, with a replica that dies at the peak. The end of lab 18 runs it.

Requests flow as a liquid, as in the lab's `run_day`. The policies are called as the lab defines them.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PolicyDay", "run_policies"]

_TICK = 15
_TOKENS = 240
"""Tokens of an answer: 6 s in a seat, at 40 tokens/s."""


@dataclass(frozen=True)
class _Moment:
    seconds: float
    rate: float
    ready: int
    starting: int
    waiting: float


@dataclass
class PolicyDay:
    """The moments of the day, and its outcome. `lost` requests failed for their clients."""

    moments: list[_Moment] = field(default_factory=list)
    requests: float = 0.0
    late: float = 0.0
    retried: int = 0
    lost: int = 0
    replicas: list[tuple[float, int]] = field(default_factory=list)
    attempts: list[tuple[str, int, bool]] = field(default_factory=list)

    @property
    def in_time(self) -> float:
        return 1 - self.late / self.requests


def run_policies(
    pieces: Any,
    service: Any,
    rates: Sequence[float],
    lost: Callable[[int], Any],
    *,
    target: float,
    ready_after: float,
    window: int = 300,
    fewest: int = 1,
) -> PolicyDay:
    """Run one day, a rate per tick of 15 s. At the peak one replica dies with the requests in its seats.

    Args:
        pieces: has `desired`, `settle` and `retry_delay`.
        lost: makes the failure of a request that has streamed so many tokens.
        target: requests in flight per replica.
        ready_after: seconds from the order of a replica until it gets requests.
    """
    day = PolicyDay()
    rng = random.Random(1)
    inside = rates[0] * service.hold
    ready = max(fewest, math.ceil(inside / target))
    starting: deque[float] = deque()
    wanted: list[tuple[int, int]] = []
    peak = max(range(len(rates)), key=lambda tick: rates[tick])
    for tick, rate in enumerate(rates):
        now = tick * _TICK
        while starting and starting[0] <= now:
            starting.popleft()
            ready += 1
        if tick == peak and ready > 1:
            victims = int(min(inside / ready, service.seats))
            ready -= 1
            inside -= victims - _retried(pieces, lost, victims, rng, day)
        inside = _flow(day, service, tick, rate, inside, ready, len(starting))
        loads: list[float | None] = [inside / ready] * ready
        loads += [None] * len(starting)
        wanted.append((now, pieces.desired(loads, target, 0.1, (fewest, 60))))
        change = pieces.settle(list(wanted[-200:]), now, len(loads), window) - len(loads)
        starting.extend([now + ready_after] * change)
        for _ in range(-change):
            if starting:
                starting.pop()
            elif ready > 1:
                ready -= 1
        if not day.replicas or day.replicas[-1][1] != ready + len(starting):
            day.replicas.append((now, ready + len(starting)))
    return day


def _flow(day: PolicyDay, service: Any, tick: int, rate: float, inside: float, ready: int, starting: int) -> float:
    """Let requests come and go for a tick. Returns how many are inside."""
    seats = ready * service.seats
    answered = 0.0
    for _ in range(5):
        gone = _TICK / 5 * min(inside, seats) / service.hold
        inside += _TICK / 5 * rate - gone
        answered += gone
    waiting = max(0.0, inside - seats)
    day.moments.append(_Moment(tick * _TICK, rate, ready, starting, waiting))
    day.requests += rate
    day.late += rate * (waiting * service.hold / seats > service.wait)
    day.attempts.append((f"tick {tick}", round(answered * _TOKENS), True))
    return inside


def _retried(pieces: Any, lost: Callable[[int], Any], victims: int, rng: random.Random, day: PolicyDay) -> int:
    """Ask for each request of a dead replica whether it is tried again. A quarter has not streamed anything yet."""
    budget = 10.0
    before = day.retried
    for number in range(victims):
        streamed = 0 if number % 4 == 0 else rng.randrange(1, _TOKENS)
        day.attempts.append((f"broken {number}", streamed, False))
        if pieces.retry_delay(lost(streamed), 1, budget, rng.random()) is None:
            day.lost += 1
        else:
            budget -= 1
            day.retried += 1
    return day.retried - before
