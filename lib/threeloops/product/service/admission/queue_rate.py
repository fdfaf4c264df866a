"""Measure how fast a queue empties while there is one. Retry-After is computed from this rate."""

from collections import deque

__all__ = ["QueueRate"]

_REMEMBERED = 64
_ENOUGH = 4  # departures of this busy period, before it is trusted


class QueueRate:
    """Call `begins` when somebody queues and nobody did, and `left` when somebody leaves the queue to run.

    Time without a queue does not count, because it says nothing about how fast one empties. The time since the latest
    departure does: a service that is stuck has a rate that falls.
    """

    def __init__(self) -> None:
        self._moments: deque[float] = deque(maxlen=_REMEMBERED + 1)
        self._before: float | None = None  # the rate of the latest busy period that was long enough

    def begins(self, now: float) -> None:
        if len(self._moments) > _ENOUGH and (time := self._moments[-1] - self._moments[0]) > 0:
            self._before = (len(self._moments) - 1) / time
        self._moments.clear()
        self._moments.append(now)

    def left(self, now: float) -> None:
        self._moments.append(now)

    def seconds(self, places: int, now: float | None) -> float | None:
        """Estimate the seconds until `places` will have left, or return None if nothing was measured yet. `now` is None
        while nobody is queued. Then the measurement ended with the latest departure."""
        if len(self._moments) > _ENOUGH:
            until = self._moments[-1] if now is None else now
            return places * max(0.0, until - self._moments[0]) / (len(self._moments) - 1)
        return places / self._before if self._before else None
