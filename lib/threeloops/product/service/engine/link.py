"""The front's end of the socket between it and an engine's process, for asyncio, and the process at the other end."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from threeloops.frames import FrameReader, frame
from threeloops.module_process import command
from threeloops.product.request import EngineStopped

__all__ = ["EngineProcess"]

_END_SECONDS = 5.0
"""The time that a process has to end by itself after its socket was closed."""


class _MessageLink(asyncio.Protocol):
    """Send messages, and receive those of `kind`. Messages sent within one turn of the loop go out in one write.

    `receive` is called with each message. `lost` is called once, when the other end is gone or sent something that is
    not a message.
    """

    def __init__(self, kind: object, receive: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._reader = FrameReader(kind)
        self._receive = receive
        self._lost = lost
        self._outbox: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(
        cls, end: socket.socket, kind: object, receive: Callable[[Any], None], lost: Callable[[], None]
    ) -> "_MessageLink":
        _, link = await asyncio.get_running_loop().create_unix_connection(lambda: cls(kind, receive, lost), sock=end)
        return link

    def send(self, message: msgspec.Struct) -> None:
        """Send a message, or do nothing once the link is lost."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(frame(message))

    def close(self) -> None:
        """Send the remaining messages, and hang up."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def _flush(self) -> None:
        if self._outbox and self._transport is not None:
            self._transport.write(b"".join(self._outbox))
            self._outbox.clear()

    # What follows is called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._receive(message)
        except ValueError:  # also msgspec's: nothing behind it can be understood
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._outbox.clear()
        self._lost()


class EngineProcess:
    """A process that loads a model, and then answers. Its messages are of `kind`, and `hear` gets each of them.

    `name` is what errors call it. `lost` is called once, when it is gone.
    """

    def __init__(self, name: str, kind: object, hear: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self.name = name
        self.reason = ""
        """Why the process has ended, or is about to."""
        self.loaded = asyncio.Event()
        """`hear` sets it when the model is loaded."""
        self.gone = asyncio.Event()
        self._kind = kind
        self._hear = hear
        self._lost = lost
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._process: asyncio.subprocess.Process
        self._link: _MessageLink

    async def start(self, module: str, first: msgspec.Struct) -> None:
        """Start `main` of a module, and send it the first message."""
        ours, theirs = socket.socketpair()
        with theirs:
            words = command(module)
            self._process = await asyncio.create_subprocess_exec(*words, stdin=theirs.fileno(), start_new_session=True)
        self._link = await _MessageLink.open(ours, self._kind, self._hear, self._ended)
        self.send(first)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ready(self) -> bool:
        """Whether it takes requests now."""
        return self.loaded.is_set() and not self.gone.is_set()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message, unless the process has ended."""
        self._link.send(message)

    async def wait_ready(self) -> None:
        """Raises EngineStopped, with the reason, if the process ends before its model is loaded."""
        tasks = {asyncio.create_task(self.loaded.wait()), asyncio.create_task(self.gone.wait())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        if self.gone.is_set():
            raise EngineStopped(self.reason)

    async def wait_gone(self) -> None:
        """Wait until the process has ended."""
        await self.gone.wait()
        await self._process.wait()

    async def ask(self, number: int, question: msgspec.Struct, seconds: float) -> Any:
        """Return what `answer` gets for this number. Raises EngineStopped if the process does not answer in time."""
        answer = self._questions[number] = asyncio.get_running_loop().create_future()
        self.send(question)
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise EngineStopped(f"{self.name} {self.pid} gave no answer in {seconds:g} s") from None
        finally:
            del self._questions[number]

    def answer(self, number: int, value: object) -> None:
        """Give an answer to the task that asked, if it still waits."""
        answer = self._questions.get(number)
        if answer is not None and not answer.done():
            answer.set_result(value)

    def kill(self, reason: str) -> None:
        """End the process at once, even if it is stopped."""
        self.reason = self.reason or reason
        with suppress(ProcessLookupError):
            self._process.kill()

    async def close(self, reason: str) -> None:
        """End the process at any time, and wait until it has ended."""
        self.reason = self.reason or reason
        self._link.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        if self._process.returncode is None:
            self.kill(self.reason)
        await self.wait_gone()

    def _ended(self) -> None:
        self.reason = self.reason or f"{self.name} {self.pid} has ended unexpectedly"
        self.gone.set()
        for answer in self._questions.values():
            if not answer.done():
                answer.set_exception(EngineStopped(self.reason))
        self._lost()
