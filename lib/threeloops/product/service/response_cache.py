"""A cache of earlier answers in Redis, for requests whose answer is always the same.

A cache may fail in any way, and the service must then behave as if there were none. If Redis is gone, slow, or returns
nonsense, that is a miss and a counted error. After a few errors in a row the cache is not asked for a while, so that a
dead Redis does not cost every request its timeout. A returned value is verified: it must be what was stored, under this
key.
"""

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from threeloops.product.request import Sampling
from threeloops.units import require_whole

__all__ = ["ResponseCache"]

_PREFIX = "threeloops:answer:"
_CONNECTIONS = 32
_FAILURES = 3  # in a row, after which Redis is left alone
_WITHOUT_EFFECT = {"temperature", "seed", "top_k", "top_p", "min_p", "is_adjusted"}  # at temperature 0
_log = logging.getLogger(__name__)


class ResponseCache:
    """Answers of at most `largest_bytes`, kept for `seconds_to_live`. An operation waits at most `timeout` seconds.

    Every lookup counts as one of `hits` or `misses`. `errors` counts operations that failed in Redis or took more than
    half of `timeout`, and stored values that were not answers. After three failures in a row Redis is not asked for
    `pause` seconds. Then one operation tries again.

    >>> key = cache.key(version.digest, request.prompt, request.sampling)
    >>> if (answer := await cache.get(key)) is None:
    ...     answer = ...
    ...     await cache.put(key, answer)
    """

    def __init__(
        self,
        url: str,
        seconds_to_live: int = 3600,
        *,
        largest_bytes: int = 1 << 16,
        timeout: float = 0.1,
        pause: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        require_whole(seconds_to_live=seconds_to_live, largest_bytes=largest_bytes)
        self.seconds_to_live = seconds_to_live
        self.largest_bytes = largest_bytes
        self.hits = self.misses = self.errors = 0
        self._timeout = timeout
        self._pause = pause
        self._clock = clock
        self._failures = 0
        self._closed_until = 0.0
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=timeout,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._redis = Redis(connection_pool=pool)

    @staticmethod
    def key(model_version: str, prompt: Sequence[int], sampling: Sampling, also: str = "") -> str | None:
        """Return the key of an answer, or None if it depends on chance. `also` has everything else that shapes it, such
        as stop strings.

        At temperature 0 the likeliest token is taken, so seed, top_k, top_p and min_p change nothing.
        """
        if sampling.temperature != 0:
            return None
        shaping = {name: value for name, value in vars(sampling).items() if name not in _WITHOUT_EFFECT}
        parts = [model_version, list(prompt), sorted(shaping.items()), also]
        return _PREFIX + hashlib.sha256(json.dumps(parts, default=sorted).encode()).hexdigest()

    async def get(self, key: str | None) -> bytes | None:
        """Return the stored answer, or None if there is none, if `key` is None, or if Redis fails."""
        if key is None:
            return None
        # a range, so that whatever somebody else stored under the key is not loaded in full
        entry = await self._ask(lambda: self._redis.getrange(key, 0, self.largest_bytes + _SEAL_BYTES))
        if not entry:
            self.misses += 1
            return None
        answer = entry[_SEAL_BYTES:]
        if entry[:_SEAL_BYTES] != _seal(key, answer) or len(answer) > self.largest_bytes:
            self.misses += 1
            self.errors += 1
            _log.warning("the response cache held something else than an answer; it is ignored")
            return None
        self.hits += 1
        return answer

    async def put(self, key: str | None, answer: bytes) -> None:
        """Store an answer, unless `key` is None or the answer is too long."""
        if key is not None and len(answer) <= self.largest_bytes:
            await self._ask(lambda: self._redis.set(key, _seal(key, answer) + answer, ex=self.seconds_to_live))

    async def close(self) -> None:
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    async def _ask(self, operation: Callable) -> bytes | None:
        """Return Redis's answer, or None if it failed or was not asked."""
        now = self._clock()
        if self._failures >= _FAILURES:
            if now < self._closed_until:
                return None
            self._closed_until = now + self._pause  # one tries, the others do not wait for it
        try:
            async with asyncio.timeout(self._timeout):
                answer = await operation()
        except Exception as error:  # a server that talks nonsense makes the client raise just about anything
            self._fail(type(error).__name__)
            return None
        if self._clock() - now > self._timeout / 2:
            self._fail("slow")
            return answer if isinstance(answer, bytes) else None
        if self._failures >= _FAILURES:
            _log.warning("Redis answers again: the response cache is used")
        self._failures = 0
        return answer if isinstance(answer, bytes) else None

    def _fail(self, why: str) -> None:
        """Counted always, logged once per outage; without the message, which may hold the address and the password."""
        self.errors += 1
        self._failures += 1
        if self._failures == _FAILURES:
            self._closed_until = self._clock() + self._pause
            _log.warning(
                "Redis failed %d times in a row (%s): answers are not cached; it is tried again every %g s",
                _FAILURES,
                why,
                self._pause,
            )


_SEAL_BYTES = hashlib.sha256().digest_size


def _seal(key: str, answer: bytes) -> bytes:
    """Holds the key too: a client whose replies got out of step would otherwise hand out somebody else's answer."""
    return hashlib.sha256(key.encode() + b"\0" + answer).digest()
