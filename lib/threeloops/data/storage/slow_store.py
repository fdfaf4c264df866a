"""A store that is far away: every request pays a latency, and all requests share one link.

The model has two numbers. A request's first byte could arrive `latency` after it was asked; the link carries
`bandwidth` bytes a second and serves requests one after another, in the order in which they were asked. So latencies
overlap, and bytes do not. That something is not there is an answer of no bytes. It is the same for real waiting and for
a virtual clock.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from threeloops.data.errors import StoreTimeout
from threeloops.data.storage.store import Store
from threeloops.simulation.clock import Clock, RealClock, VirtualClock


@dataclass
class Link:
    """`latency` in seconds, `bandwidth` in bytes/s; how many requests and bytes it has been asked for."""

    latency: float
    bandwidth: float
    requests: int = 0
    bytes: int = 0
    _free_at: float = field(default=-math.inf, repr=False)

    def __post_init__(self) -> None:
        if not (self.latency >= 0 and self.bandwidth > 0):
            raise ValueError(
                f"latency = {self.latency} s, bandwidth = {self.bandwidth} bytes/s: expected ≥ 0 and positive"
            )

    def reserve(self, now: float, size: int) -> float:
        """When the last of `size` bytes asked for at `now` arrives. Calls come in the order of their times."""
        self.requests, self.bytes = self.requests + 1, self.bytes + size
        self._free_at = max(now + self.latency, self._free_at) + size / self.bandwidth
        return self._free_at


@dataclass(frozen=True)
class SlowStore:
    """`contents` behind `link`. A request that would take longer than `timeout` seconds raises StoreTimeout then.

    What `contents` raises, KeyError for what it does not have, is raised when the answer would be there.

    The link does not notice that a client has given up: the bytes are sent all the same.
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
    """The same on a virtual clock, for any number of readers at once: an answer is an event."""

    contents: Store
    link: Link
    clock: VirtualClock
    timeout: float = math.inf

    def request(self, key: str, answer: Callable[[bytes | Exception], None]) -> None:
        """Ask now; `answer` is called with the bytes, or with the exception, when they are there."""
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
    """When the answer to a request made at `asked` is there, in the clock's seconds, and what it is."""
    arrives = link.reserve(asked, 0 if isinstance(found, Exception) else len(found))
    if arrives - asked > timeout:
        return asked + timeout, late(key, arrives - asked, timeout)
    return arrives, found


def late(key: str, would_take: float, timeout: float) -> StoreTimeout:
    return StoreTimeout(
        f"{key}: no answer within {timeout:g} s (it would have taken {would_take:g} s): ask for less at once, "
        "or allow more time"
    )
