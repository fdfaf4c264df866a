"""A store that is far away: every request pays a latency, and all requests share one link.

The model is the same with real waiting and on a virtual clock. A failed request is answered with no bytes.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from threeloops.data.storage.store import Store
from threeloops.simulation.clock import Clock, RealClock, VirtualClock
from threeloops.simulation.link import SharedLink

__all__ = ["SlowStore", "VirtualStore"]


@dataclass(frozen=True)
class SlowStore:
    """`contents` behind `link`. An exception of `contents` is raised at the time when the answer would have arrived."""

    contents: Store
    link: SharedLink
    clock: Clock = field(default_factory=RealClock)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def get(self, key: str) -> bytes:
        answer, size = _answer(self.contents, key)
        with self._lock:
            moment = self.link.reserve(self.clock.now(), size)
        self.clock.sleep_until(moment)
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass(frozen=True)
class VirtualStore:
    """The same on a virtual clock, for any number of readers at once: an answer is a planned action."""

    contents: Store
    link: SharedLink
    clock: VirtualClock

    def request(self, key: str, answer: Callable[[bytes | Exception], None]) -> None:
        """Ask now; `answer` is called with the bytes, or with the exception, when they arrive."""
        what, size = _answer(self.contents, key)
        self.clock.at(self.link.reserve(self.clock.now(), size), partial(answer, what))


def _answer(contents: Store, key: str) -> tuple[bytes | Exception, int]:
    """The answer to a request, and how many bytes of it have to be sent."""
    try:
        value = contents.get(key)
    except Exception as error:
        return error, 0
    return value, len(value)
