"""A store that is far away: every request pays a latency, and all requests share one link.

The model has two numbers. A request's first byte could arrive `latency` after it was asked; the link carries
`bandwidth` bytes a second and serves requests one after another, in the order in which they were asked. So latencies
overlap, and bytes do not. It is the same for real waiting and for a virtual clock.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from threeloops.data.clock import Clock, RealClock, VirtualClock
from threeloops.data.errors import StoreTimeout
from threeloops.data.store import Store


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

    The link does not notice that a client has given up: the bytes are sent all the same.
    """

    contents: Store
    link: Link
    timeout: float = math.inf
    clock: Clock = field(default_factory=RealClock)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self.contents.get(key, offset, length)
        with self._lock:
            asked = self.clock.now()
            arrives = self.link.reserve(asked, len(data))
        self.clock.sleep_until(min(arrives, asked + self.timeout))
        if arrives - asked > self.timeout:
            raise late(key, arrives - asked, self.timeout)
        return data


@dataclass(frozen=True)
class VirtualStore:
    """The same on a virtual clock, for any number of readers at once: an answer is an event."""

    contents: Store
    link: Link
    clock: VirtualClock
    timeout: float = math.inf

    def request(self, key: str, answer: Callable[[bytes | Exception], None]) -> None:
        """Ask now; `answer` is called with the bytes, or with the exception, when they are there."""
        try:
            data = self.contents.get(key)
        except KeyError as error:
            self.clock.at(self.clock.now() + self.link.latency, partial(answer, error))
            return
        asked = self.clock.now()
        arrives = self.link.reserve(asked, len(data))
        if arrives - asked > self.timeout:
            self.clock.at(asked + self.timeout, partial(answer, late(key, arrives - asked, self.timeout)))
        else:
            self.clock.at(arrives, partial(answer, data))


def late(key: str, would_take: float, timeout: float) -> StoreTimeout:
    return StoreTimeout(
        f"{key}: no answer within {timeout:g} s (it would have taken {would_take:g} s): ask for less at once, "
        "or allow more time"
    )
