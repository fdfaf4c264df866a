"""The engine behind asyncio: one thread steps it, and any number of tasks read tokens.

Only the thread touches the engine, and tasks send it commands. A request whose reader is `buffer` tokens behind is
paused until half of them are read. So a slow reader takes memory for at most `buffer` unread tokens and stalls nobody.
In exchange, the engine recomputes what the prefix cache has lost in the pause.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from threeloops.product.batching.engine import Engine
from threeloops.product.request import EngineStopped, Finish, Request, RequestFailed
from threeloops.product.token_stream import TokenStream
from threeloops.units import require_whole

__all__ = ["AsyncEngine"]


@dataclass(eq=False)
class _Stream(TokenStream):
    """A stream whose engine is in another thread than its reader."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def wake(self) -> bool:
        """False if the reader's loop is closed, so nobody will ever read."""
        try:
            self.loop.call_soon_threadsafe(self.changed.set)
        except RuntimeError:
            return False
        return True


class AsyncEngine:
    """An engine for asyncio, which it owns while it is open; `async with` closes it.

    >>> async with AsyncEngine(engine) as front:
    ...     async with contextlib.aclosing(front.generate(request)) as tokens:
    ...         async for token in tokens:
    ...             ...
    """

    def __init__(self, engine: Engine, buffer: int = 64):
        require_whole(of="tokens", buffer=buffer)
        self._engine = engine
        self._buffer = buffer
        self._streams: dict[Request, _Stream] = {}  # the thread's
        self._changed = threading.Condition()
        self._commands: list[Callable[[], None]] = []
        self._draining = self._closing = False
        self._stopped: EngineStopped | None = None
        self._thread: threading.Thread | None = None

    async def __aenter__(self) -> "AsyncEngine":
        if self._thread is not None:
            raise RuntimeError("this front was opened before: make a new AsyncEngine")
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def generate(self, request: Request) -> AsyncIterator[int]:
        """Yield the request's tokens as they come. Its arrival is now.

        If the reader stops reading, the request is cancelled; `contextlib.aclosing` does that at once. Raises what
        `Engine.add` raises, RequestFailed if the request ends with an error, and EngineStopped if the engine fails or
        is closed.
        """
        request.arrival = self._engine.clock.now()
        stream = _Stream(request, self._buffer, resume=self._resume)
        if self._draining or self._thread is None or not self._send(lambda: self._join(stream)):
            raise self._stopped or EngineStopped("the engine takes no new requests: it is not open, or is draining")
        try:
            async for token in stream:
                yield token
        finally:
            if not stream.done:
                self._send(lambda: self._leave(stream))

    async def drain(self) -> None:
        """Take no new requests, wait until those that are here have been computed, and close."""
        self._draining = True
        self._send(lambda: None)
        await self._end()

    async def close(self) -> None:
        """Cancel the remaining requests and end the thread. Readers get EngineStopped."""
        self._draining = self._closing = True
        self._send(lambda: None)
        await self._end()

    async def _end(self) -> None:
        if self._thread is not None:
            await self._ended.wait()
            self._thread.join()

    def _send(self, command: Callable[[], None]) -> bool:
        """False if the thread takes no more commands."""
        with self._changed:
            if self._stopped is None:
                self._commands.append(command)
                self._changed.notify()
            return self._stopped is None

    def _resume(self, request: Request) -> None:
        def command() -> None:
            if request in self._engine.scheduler.paused:
                self._engine.scheduler.resume(request)

        self._send(command)

    # What follows runs in the thread.

    def _serve(self) -> None:
        stopped = EngineStopped("the engine was closed")
        try:
            may_step = False
            while not self._closing:
                for command in self._take_commands(wait=not may_step):
                    command()
                self._engine.scheduler.draining = self._draining
                if self._draining and not self._streams:
                    break
                may_step = bool(self._engine.step().chunks)
                self._publish()
        except BaseException as error:  # whatever it is, nobody must wait for ever
            stopped = EngineStopped(f"the engine failed: {error!r}")
            stopped.__cause__ = error
        finally:
            self._stop(stopped)

    def _take_commands(self, wait: bool) -> list[Callable[[], None]]:
        with self._changed:
            if wait and not self._commands and not self._closing:
                seconds = self._engine.scheduler.next_door() - self._engine.clock.now()
                self._changed.wait(None if seconds > threading.TIMEOUT_MAX else max(0.0, seconds))
            commands = self._commands
            self._commands = []
            return commands

    def _join(self, stream: _Stream) -> None:
        try:
            self._engine.add(stream.request)
            self._streams[stream.request] = stream
        except Exception as error:
            self._finish(stream, error)

    def _leave(self, stream: _Stream) -> None:
        if self._streams.pop(stream.request, None) is not None:
            self._engine.cancel(stream.request.id)

    def _publish(self) -> None:
        """Tell readers about new tokens, and pause those who are too far behind."""
        for request, stream in list(self._streams.items()):
            if request.finish is not None:
                del self._streams[request]
                self._finish(stream, RequestFailed(request.error) if request.finish is Finish.ERROR else None)
            elif len(request.output) > stream.available:
                stream.available = len(request.output)
                stream.pause_if_full(self._engine.scheduler.pause)
                if not stream.wake():
                    self._leave(stream)

    def _finish(self, stream: _Stream, error: Exception | None) -> None:
        stream.available = len(stream.request.output)
        stream.error = error
        stream.done = True
        stream.wake()

    def _stop(self, stopped: EngineStopped) -> None:
        with self._changed:
            self._stopped = stopped
        for command in self._commands:  # who came in the meantime is answered too
            command()
        for id in list(self._engine.requests):
            self._engine.cancel(id)
        for stream in self._streams.values():
            self._finish(stream, stopped)
        with suppress(RuntimeError):  # the loop was closed before the engine: nobody waits
            self._loop.call_soon_threadsafe(self._ended.set)
