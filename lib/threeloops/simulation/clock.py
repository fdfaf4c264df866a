"""Two clocks with the same interface: one waits, the other only computes, so its runs repeat exactly."""

import heapq
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol

__all__ = ["Clock", "RealClock", "VirtualClock"]


class Clock(Protocol):
    def now(self) -> float:
        """Return the seconds since some moment in the past."""
        ...

    def sleep_until(self, moment: float) -> None:
        """Sleep until `moment`, or not at all if it is past."""
        ...


class RealClock:
    """The machine's own time."""

    def now(self) -> float:
        return time.monotonic()

    def sleep_until(self, moment: float) -> None:
        if (remaining := moment - time.monotonic()) > 0:
            time.sleep(remaining)


class VirtualClock:
    """Time that moves only when somebody waits; actions planned for the meantime run on the way, in order."""

    def __init__(self) -> None:
        self._now = 0.0
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def now(self) -> float:
        return self._now

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Plan `action`. Actions planned for the same moment run in the order in which they were planned."""
        if moment < self._now:
            raise ValueError(f"moment = {moment:g} s is past: it is {self._now:g} s")
        heapq.heappush(self._planned, (moment, next(self._order), action))

    def sleep_until(self, moment: float) -> None:
        while self._planned and self._planned[0][0] <= moment:
            self._run_next()
        self._now = max(self._now, moment)

    def run_until(self, done: Callable[[], bool]) -> None:
        """Run planned actions until `done()`. Raises RuntimeError when none is left."""
        while not done():
            if not self._planned:
                raise RuntimeError(f"deadlock at {self._now:g} s: something is awaited and nothing is planned")
            self._run_next()

    def _run_next(self) -> None:
        moment, _, action = heapq.heappop(self._planned)
        self._now = max(self._now, moment)
        action()
