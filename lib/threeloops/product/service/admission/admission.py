"""A bounded number of running requests, a bounded queue of waiting ones, and limits per client.

A service that accepts more than it can do is late for everybody. So it refuses requests beyond a bound at once: with
429 if the client's own limits are exceeded, and with 503 if the service is full. A waiting request has a deadline. If
the measured rate says that the deadline cannot be met, the request is refused without waiting.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from threeloops.product.service.admission.client import Client, ClientLimits
from threeloops.product.service.admission.queue_rate import QueueRate
from threeloops.product.service.admission.refused import Refused
from threeloops.product.service.admission.token_bucket import TokenBucket
from threeloops.units import require_whole

__all__ = ["Admission"]

_LONGEST_WAIT = 30 * 86400.0  # seconds; who would have to wait longer is not told to
_UNMEASURED = 1.0  # seconds: Retry-After where nothing was measured


@dataclass
class _Account:
    """A client's remaining limits, and how many of its requests run or are queued."""

    limits: ClientLimits
    requests: TokenBucket | None
    tokens: TokenBucket | None
    inside: int = 0

    def waits(self, tokens: int, now: float) -> dict[str, float]:
        """The seconds until each bucket has enough."""
        return {
            "requests": self.requests.wait(1, now) if self.requests else 0.0,
            "tokens": self.tokens.wait(tokens, now) if self.tokens else 0.0,
        }

    def charge(self, tokens: int, now: float) -> None:
        if self.requests:
            self.requests.charge(1, now)
        if self.tokens:
            self.tokens.charge(tokens, now)


class Admission:
    """Admission of tasks of one event loop. At most `max_running` run and `max_queued` wait, first in, first out."""

    def __init__(self, max_running: int, max_queued: int, clock: Callable[[], float] = time.monotonic):
        require_whole(1, of="requests", max_running=max_running)
        require_whole(0, of="requests", max_queued=max_queued)
        self.max_running = max_running
        self.max_queued = max_queued
        self.running = 0
        self.draining = False
        self._clock = clock
        self._queue: deque[asyncio.Future[None]] = deque()
        self._rate = QueueRate()
        self._accounts: dict[str, _Account] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def queued(self) -> int:
        return len(self._queue)

    @asynccontextmanager
    async def admit(self, client: Client, tokens: int, deadline: float = math.inf) -> AsyncIterator[None]:
        """Wait for a place, at most `deadline` seconds, and hold it in the block.

        The buckets are charged when the request enters the queue. They give nothing back, neither for tokens that were
        never generated nor for requests that waited in vain.

        Raises:
            Refused: 400 `tokens_above_limit`: more tokens than the client's bucket ever holds; 429
                `rate_limit_exceeded` or `concurrency_limit_exceeded`: the client's limits; 503 `overloaded`,
                `deadline_exceeded` or `draining`: the service.
        """
        if not deadline >= 0:
            raise ValueError(f"deadline = {deadline!r}: expected seconds from now, at least 0")
        now = self._clock()
        account = self._account(client)
        if self.draining:
            raise Refused(503, "draining", "the service is shutting down: try again", _UNMEASURED)
        self._check_limits(client, account, tokens, now)
        self._check_room(deadline, now)
        account.charge(tokens, now)
        account.inside += 1
        self._empty.clear()
        try:
            await self._take_place(deadline)
            try:
                yield
            finally:
                self._free_place()
        finally:
            account.inside -= 1
            if not self.running and not self._queue:
                self._empty.set()

    def drain(self) -> None:
        """Refuse all new requests. Queued requests are still served."""
        self.draining = True

    async def drained(self) -> None:
        """Wait until nobody runs or is queued."""
        await self._empty.wait()

    def _account(self, client: Client) -> _Account:
        """Return the client's account by name. It outlives a reload of the keys, but gets new buckets if its limits
        change."""
        account = self._accounts.get(client.name)
        limits = client.limits
        if account is None or account.limits != limits:
            requests = _bucket(limits.requests_per_second, limits.request_burst)
            tokens = _bucket(limits.tokens_per_second, limits.token_burst)
            account = account or _Account(limits, requests, tokens)
            account.limits = limits
            account.requests = requests
            account.tokens = tokens
            self._accounts[client.name] = account
        return account

    def _check_limits(self, client: Client, account: _Account, tokens: int, now: float) -> None:
        """The client's own: from both buckets or from none."""
        if account.inside >= account.limits.concurrent:
            raise Refused(
                429,
                "concurrency_limit_exceeded",
                f"{account.inside} requests of client {client.name!r} are here at once, which is its limit: wait until "
                "one has ended",
                self._seconds(1, now) or _UNMEASURED,
            )
        if account.tokens and tokens > account.tokens.burst:
            raise Refused(
                400,
                "tokens_above_limit",
                f"prompt and max_tokens together are {tokens} tokens, and client {client.name!r} may ask for at most "
                f"{account.tokens.burst:g} at once: shorten the prompt, or lower max_tokens",
                param="max_tokens",
            )
        waits = account.waits(tokens, now)
        scarce = max(waits, key=lambda name: waits[name])
        if (wait := waits[scarce]) > 0:
            rate = getattr(account.limits, f"{scarce}_per_second")
            is_worth_it = wait <= _LONGEST_WAIT
            again = f"try again in {wait:.1f} s" if is_worth_it else "ask whoever runs this service for more"
            raise Refused(
                429,
                "rate_limit_exceeded",
                f"client {client.name!r} may ask for {rate:g} {scarce} per second, and has used them up: {again}",
                wait if is_worth_it else None,
            )

    def _check_room(self, deadline: float, now: float) -> None:
        """The service's own bounds."""
        if self.running < self.max_running:
            return
        if self.queued >= self.max_queued:
            raise Refused(
                503,
                "overloaded",
                f"{self.running} requests are running and {self.queued} are queued, which is all that this service "
                "takes on: try again later",
                self._retry_after(now),
            )
        expected = self._seconds(self.queued + 1, now)
        if self.queued and expected is not None and expected > deadline:  # an estimate refuses nobody an empty queue
            raise Refused(
                503,
                "deadline_exceeded",
                f"{self.queued} requests are queued, and the wait would be about {expected:.1f} s, which is more than "
                f"this request's deadline of {deadline:g} s allows: try again later",
                self._retry_after(now),
            )

    def _retry_after(self, now: float) -> float:
        """Return the seconds until the queue is empty, so that not all clients come back for the first free place."""
        expected = self._seconds(max(1, self.queued), now)
        return _UNMEASURED if expected is None else expected

    def _seconds(self, places: int, now: float) -> float | None:
        return self._rate.seconds(places, now if self.queued else None)

    async def _take_place(self, deadline: float) -> None:
        if self.running < self.max_running:  # nobody is queued then
            self.running += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._queue:
            self._rate.begins(self._clock())
        self._queue.append(place)
        try:
            async with asyncio.timeout(None if deadline == math.inf else deadline):
                await place
        except BaseException as error:
            if place in self._queue:
                self._queue.remove(place)
            elif not place.cancelled():  # it was given the place just before
                self._free_place()
            if not isinstance(error, TimeoutError):
                raise
            raise Refused(
                503,
                "deadline_exceeded",
                f"no place became free within this request's deadline of {deadline:g} s: try again later",
                self._retry_after(self._clock()),
            ) from None

    def _free_place(self) -> None:
        """Hand the place to the first in the queue who was not cancelled in this very moment."""
        self.running -= 1
        while self._queue:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(None)
                self._rate.left(self._clock())
                self.running += 1
                return


def _bucket(rate: float, burst: float) -> TokenBucket | None:
    return None if rate == math.inf else TokenBucket(rate, burst)
