"""One of the two processes, as the front sees it."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import count

import msgspec

from threeloops.module_process import command
from threeloops.product.disaggregated.real.messages import (
    AskRoleState,
    AskUnfinished,
    FromRole,
    RoleReady,
    RoleState,
    StartRole,
    Unfinished,
)
from threeloops.product.request import EngineStopped
from threeloops.product.service.engine.link import MessageLink
from threeloops.product.service.engine.messages import Failed

__all__ = ["Side"]

_END_SECONDS = 5.0
"""The time that the process has to end by itself after its socket was closed."""


class Side:
    """A process with its role. `hear` gets each of its messages, and `lost` is called when it is gone."""

    def __init__(
        self, start: StartRole, hear: Callable[["Side", FromRole], None], lost: Callable[["Side"], None]
    ) -> None:
        self.role = start.role
        self.listens = start.listen
        """The path of its socket, if it is the decode process."""
        self.ready: RoleReady | None = None
        self.reason = ""
        """Why the process has ended, or is about to."""
        self.gone = asyncio.Event()
        self._hear = hear
        self._lost = lost
        self._start = start
        self._loaded = asyncio.Event()
        self._numbers = count()
        self._questions: dict[int, asyncio.Future[Unfinished | RoleState]] = {}
        self._process: asyncio.subprocess.Process
        self._link: MessageLink

    async def start(self) -> None:
        """Start the process, which begins to load its model."""
        ours, theirs = socket.socketpair()
        with theirs:
            words = command("threeloops.product.disaggregated.real.process")
            self._process = await asyncio.create_subprocess_exec(*words, stdin=theirs.fileno(), start_new_session=True)
        self._link = await MessageLink.open(ours, FromRole, self._receive, self._ended)
        self.send(self._start)

    async def wait_loaded(self, seconds: float) -> None:
        """Raises EngineStopped, with the reason, if the process ends before its model is loaded, or is too slow."""
        tasks = {asyncio.create_task(self._loaded.wait()), asyncio.create_task(self.gone.wait())}
        try:
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        if self.ready is None and not self.gone.is_set():
            self.kill(f"the {self.role} process has not loaded its model within {seconds:g} s")
            await self.gone.wait()
        if self.gone.is_set():
            raise EngineStopped(self.reason)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def takes_requests(self) -> bool:
        return self.ready is not None and not self.gone.is_set()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message, unless the process has ended."""
        self._link.send(message)

    async def unfinished(self, generation: int, seconds: float) -> set[int]:
        """Return the requests that are left there after connection `generation`. Raises EngineStopped."""
        answer = await self._ask(AskUnfinished(next(self._numbers), generation), seconds)
        assert isinstance(answer, Unfinished)
        return set(answer.numbers)

    async def state(self, seconds: float) -> RoleState:
        """Raises EngineStopped if the process is gone, or does not answer within `seconds`."""
        answer = await self._ask(AskRoleState(next(self._numbers)), seconds)
        assert isinstance(answer, RoleState)
        return answer

    def kill(self, reason: str) -> None:
        """End the process at once, even if it is stopped."""
        self.reason = self.reason or reason
        with suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """End the process, and wait until it has ended."""
        self.reason = self.reason or "the service was closed"
        self._link.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        if self._process.returncode is None:
            self.kill(self.reason)
        await self._process.wait()
        await self.gone.wait()

    async def _ask(self, question: AskUnfinished | AskRoleState, seconds: float) -> Unfinished | RoleState:
        if not self.takes_requests:
            raise EngineStopped(self.reason or f"the {self.role} process is loading its model")
        answer = self._questions[question.question] = asyncio.get_running_loop().create_future()
        self.send(question)
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise EngineStopped(f"the {self.role} process {self.pid} gave no answer in {seconds:g} s") from None
        finally:
            del self._questions[question.question]

    def _receive(self, message: FromRole) -> None:
        match message:
            case RoleReady():
                self.ready = message
                self._loaded.set()
            case Failed():
                self.reason = message.reason
            case Unfinished() | RoleState():
                answer = self._questions.get(message.question)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case _:
                self._hear(self, message)

    def _ended(self) -> None:
        self.reason = self.reason or f"the {self.role} process {self.pid} has ended unexpectedly"
        self.gone.set()
        for answer in self._questions.values():
            if not answer.done():
                answer.set_exception(EngineStopped(self.reason))
        self._lost(self)
