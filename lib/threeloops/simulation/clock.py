"""Two clocks: one that waits, and one on which waiting takes no time and always takes the same time."""

import heapq
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since some moment in the past."""
        ...

    def sleep_until(self, moment: float) -> None:
        """Come back at `moment`, or at once if it is past."""
        ...


class RealClock:
    """The machine's own time."""

    def now(self) -> float:
        return time.monotonic()

    def sleep_until(self, moment: float) -> None:
        if (left := moment - time.monotonic()) > 0:
            time.sleep(left)


class VirtualClock:
    """Time that only moves when somebody waits; what was planned for the meantime happens on the way, in order.

    One thread, no waiting: a run is the same every time, and takes as long as its computation.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def now(self) -> float:
        return self._now

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Plan `action`; of two at the same moment the one planned first comes first."""
        if moment < self._now:
            raise ValueError(f"moment = {moment:g} s is past: it is {self._now:g} s")
        heapq.heappush(self._planned, (moment, next(self._order), action))

    def sleep_until(self, moment: float) -> None:
        while self._planned and self._planned[0][0] <= moment:
            self._happen()
        self._now = max(self._now, moment)

    def run_until(self, done: Callable[[], bool]) -> None:
        """Let planned things happen until `done()`. Raises RuntimeError when nothing is planned any more."""
        while not done():
            if not self._planned:
                raise RuntimeError(f"deadlock at {self._now:g} s: something is awaited and nothing is planned")
            self._happen()

    def _happen(self) -> None:
        moment, _, action = heapq.heappop(self._planned)
        self._now = max(self._now, moment)
        action()
