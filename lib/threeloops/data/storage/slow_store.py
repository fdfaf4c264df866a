"""A store that is far away: every request pays a latency, and all requests share one link.

The model is the same with real waiting and on a virtual clock. A failed request is answered with no bytes.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from threeloops.data.errors import StoreTimeout
from threeloops.data.storage.store import Store
from threeloops.simulation.clock import Clock, RealClock, VirtualClock
from threeloops.simulation.link import Link

__all__ = ["SlowStore", "VirtualStore"]


@dataclass(frozen=True)
class SlowStore:
    """`contents` behind `link`. A request that would take longer than `timeout` seconds raises StoreTimeout then.

    What `contents` raises is raised when the answer would have arrived. A timeout does not free the link, because the
    other end does not notice that its client has given up.
    """

    contents: Store
    link: Link
    timeout: float = math.inf
    clock: Clock = field(default_factory=RealClock)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        found = _found(self.contents, key, offset, length)
        with self._lock:
            moment, answer = _answer(self.link, key, found, self.clock.now(), self.timeout)
        self.clock.sleep_until(moment)
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass(frozen=True)
class VirtualStore:
    """The same on a virtual clock, for any number of readers at once: an answer is a planned action."""

    contents: Store
    link: Link
    clock: VirtualClock
    timeout: float = math.inf

    def request(self, key: str, answer: Callable[[bytes | Exception], None]) -> None:
        """Ask now; `answer` is called with the bytes, or with the exception, when they arrive."""
        moment, what = _answer(self.link, key, _found(self.contents, key), self.clock.now(), self.timeout)
        self.clock.at(moment, partial(answer, what))


def _found(contents: Store, key: str, offset: int = 0, length: int | None = None) -> bytes | Exception:
    try:
        return contents.get(key, offset, length)
    except Exception as error:
        return error


def _answer(
    link: Link, key: str, found: bytes | Exception, asked: float, timeout: float
) -> tuple[float, bytes | Exception]:
    """When the answer to a request made at `asked` arrives, in the clock's seconds, and what it is."""
    arrives = link.reserve(asked, 0 if isinstance(found, Exception) else len(found))
    if arrives - asked <= timeout:
        return arrives, found
    return asked + timeout, StoreTimeout(
        f"{key}: no answer within {timeout:g} s (it would have taken {arrives - asked:g} s): ask for less at once, "
        "or allow more time"
    )
