"""Switch from one version of a model to the next while requests run.

The new engine starts beside the old one, so for a while both need memory. When it is ready, new requests go to it. The
old engine finishes its requests and is then stopped.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["NotServingError", "RollingSwitch", "SwitchFailedError"]

_Version = TypeVar("_Version")
_Engine = TypeVar("_Engine")

_log = logging.getLogger(__name__)


class NotServingError(RuntimeError):
    """No version is being served: none was started yet, or all are closed."""


class SwitchFailedError(RuntimeError):
    """The new version did not start. The previous version is still served."""


@dataclass(eq=False)
class _Serving(Generic[_Version, _Engine]):
    version: _Version
    engine: _Engine
    leases: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def count(self, change: int) -> None:
        self.leases += change
        if self.leases:
            self.idle.clear()
        else:
            self.idle.set()


class RollingSwitch(Generic[_Version, _Engine]):
    """`start(version)` returns an engine that is ready; `stop(engine)` ends one that nobody uses any more.

    For the tasks of one event loop. Never more than two engines are open.
    """

    def __init__(
        self,
        start: Callable[[_Version], Awaitable[_Engine]],
        stop: Callable[[_Engine], Awaitable[None]],
    ):
        self._start = start
        self._stop = stop
        self._serving: _Serving[_Version, _Engine] | None = None
        self._starting: _Version | None = None
        self._retiring: asyncio.Task[None] | None = None
        self._closed = False
        self._hurry = asyncio.Event()  # set when engines are to be stopped though they are leased
        self._turn = asyncio.Lock()  # its waiters get it in the order in which they came

    @property
    def current(self) -> _Version | None:
        """The version that new requests get."""
        return self._serving.version if self._serving else None

    @property
    def starting(self) -> _Version | None:
        """The version that is being started beside it."""
        return self._starting

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[_Engine]:
        """The engine of the current version, which stays open until the block ends. Raises NotServingError."""
        if (serving := self._serving) is None or self._closed:
            raise NotServingError("no version of the model is served yet, or it was closed: wait until it is ready")
        serving.count(+1)
        try:
            yield serving.engine
        finally:
            serving.count(-1)

    async def to(self, version: _Version) -> None:
        """Serve another version. Returns when the old engine has finished its requests and is stopped.

        Switches happen one after another. A switch to the current version does nothing. If the caller is cancelled
        while the new version starts, nothing changes; after that, the old engine is stopped nevertheless.

        Raises SwitchFailedError if the version does not start, and NotServingError after `close`.
        """
        async with self._turn:
            await self._retired()
            if self._closed:
                raise NotServingError("the switch is closed: it starts no version any more")
            if self._serving is not None and self._serving.version == version:
                return
            self._starting = version
            try:
                engine = await self._start(version)
            except Exception as error:
                still = f"{self.current} is still served" if self._serving else "nothing is served"
                raise SwitchFailedError(f"version {version} did not start: {error}; {still}") from error
            finally:
                self._starting = None
            self._replace(_Serving(version, engine))
            await self._retired()

    async def close(self, drain_seconds: float = math.inf) -> None:
        """Give out no more leases, wait until the existing ones have ended, and stop the engine.

        After `drain_seconds` the engine is stopped even if it is leased: it has to tell its readers why. If a version
        is being started, this waits until it has started, unless the caller of `to` is cancelled.
        """
        self._closed = True
        timer = None
        if drain_seconds != math.inf:
            timer = asyncio.get_running_loop().call_later(drain_seconds, self._hurry.set)
        try:
            async with self._turn:
                await self._retired()
                self._replace(None)
                await self._retired()
        finally:
            if timer is not None:
                timer.cancel()

    def _replace(self, new: "_Serving[_Version, _Engine] | None") -> None:
        """Replace the serving engine, so that nobody gets the old one. It has no `await`, so no task sees a state
        between."""
        old = self._serving
        self._serving = new
        if old is not None:
            old.count(0)
            self._retiring = asyncio.create_task(self._retire(old))

    async def _retire(self, old: "_Serving[_Version, _Engine]") -> None:
        events = [asyncio.create_task(event.wait()) for event in (old.idle, self._hurry)]
        await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
        for event in events:
            event.cancel()
        try:
            await self._stop(old.engine)
        except Exception:
            _log.exception("the engine of version %s could not be stopped; nobody uses it any more", old.version)

    async def _retired(self) -> None:
        """Wait until the old engine is stopped. It is stopped even if the waiting task is cancelled."""
        if self._retiring is not None:
            await asyncio.shield(self._retiring)
            self._retiring = None
