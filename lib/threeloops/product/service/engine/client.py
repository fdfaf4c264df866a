"""The front's side of an engine's process."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import suppress
from itertools import count

from threeloops.module_process import command
from threeloops.product.request import EngineStopped, Request
from threeloops.product.service.engine.link import MessageLink
from threeloops.product.service.engine.messages import (
    AskStats,
    Cancel,
    Credit,
    EngineSpec,
    EngineStats,
    Failed,
    Finished,
    FromEngine,
    Load,
    Message,
    Ready,
    Stats,
    Submit,
    Tokens,
)
from threeloops.product.token_stream import TokenStream

__all__ = ["EngineClient"]

_STATS_SECONDS = 2.0
_END_SECONDS = 5.0
"""The time that the process has to end by itself after its socket was closed."""


class EngineClient:
    """An engine in a process of its own.

    >>> engine = await EngineClient.start(EngineSpec("tiny"))
    >>> await engine.wait_ready()
    >>> async with contextlib.aclosing(engine.generate(request)) as tokens:
    ...     async for token in tokens:
    ...         ...
    >>> await engine.close()
    """

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.model: Ready | None = None
        """The process's description of its model, or None until it is loaded."""
        self._streams: dict[int, TokenStream] = {}
        self._numbers = count()
        self._questions: dict[int, asyncio.Future[EngineStats]] = {}
        self._ready = asyncio.Event()
        self._gone = asyncio.Event()
        self._reason = ""
        self._process: asyncio.subprocess.Process
        self._link: MessageLink

    @classmethod
    async def start(cls, spec: EngineSpec) -> "EngineClient":
        """Start the process. It is ready once its model is loaded: see `wait_ready`."""
        self = cls(spec)
        ours, theirs = socket.socketpair()
        with theirs:
            words = command("threeloops.product.service.engine.process")
            self._process = await asyncio.create_subprocess_exec(*words, stdin=theirs.fileno(), start_new_session=True)
        self._link = await MessageLink.open(ours, FromEngine, self._receive, self._lost)
        self._link.send(Load(spec))
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ready(self) -> bool:
        """Whether it takes requests now."""
        return self._ready.is_set() and not self._gone.is_set()

    @property
    def reason(self) -> str:
        """Why the process has ended; "" while it has not."""
        return self._reason if self._gone.is_set() else ""

    async def wait_ready(self) -> None:
        """Raises EngineStopped, with the reason, if the process ends before its model is loaded."""
        tasks = {asyncio.create_task(self._ready.wait()), asyncio.create_task(self._gone.wait())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        if self._gone.is_set():
            raise EngineStopped(self._reason)

    async def wait_gone(self) -> None:
        """Wait until the process has ended."""
        await self._gone.wait()
        await self._process.wait()

    async def generate(self, request: Request) -> AsyncGenerator[int, None]:
        """Yield the request's tokens as they are produced.

        The `logprobs` of a token are set before it is yielded, and `prompt_logprobs` before the first token. At the end
        `output`, `cached` and `finish` are set. If the caller stops reading, the request is cancelled. Use
        `contextlib.aclosing` to cancel it at once. Raises ValueError for a request that can never run, GrammarError if
        its grammar cannot be followed, RequestFailed if it ends with another error, and EngineStopped if the process is
        not ready or is gone.
        """
        if not self.ready:
            raise EngineStopped(self.reason or "the engine is loading its model")
        number = next(self._numbers)
        stream = self._streams[number] = TokenStream(request, self.spec.window)
        half = max(1, stream.window // 2)
        self._link.send(Submit.of(number, request))
        try:
            async for token in stream:
                if stream.read % half == 0:
                    self._link.send(Credit(number, half))
                yield token
        finally:
            del self._streams[number]
            if not stream.done:
                self._link.send(Cancel(number))

    async def stats(self, seconds: float = _STATS_SECONDS) -> EngineStats:
        """Raises EngineStopped if the process is not ready, is gone, or does not answer within `seconds`."""
        if self._gone.is_set() or not self._ready.is_set():
            raise EngineStopped(self.reason or "the engine is loading its model")
        number = next(self._numbers)
        answer = self._questions[number] = asyncio.get_running_loop().create_future()
        self._link.send(AskStats(number))
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise EngineStopped(f"the engine's process {self.pid} gave no answer in {seconds:g} s") from None
        finally:
            del self._questions[number]

    def kill(self, reason: str) -> None:
        """End the process at once, even if it is stopped. Readers get EngineStopped with the reason."""
        self._reason = self._reason or reason
        with suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """End the process at any time. Readers get EngineStopped."""
        self._reason = self._reason or "the engine was closed"
        self._link.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        if self._process.returncode is None:
            self.kill(self._reason)
            await self._process.wait()
        await self._gone.wait()

    def _receive(self, message: Message) -> None:
        match message:
            case Tokens():
                for number, tokens in message.tokens.items():
                    if (stream := self._streams.get(number)) is not None:
                        stream.request.output.extend(tokens)
                        stream.available = len(stream.request.output)
                        stream.changed.set()
                for number, logprobs in message.logprobs.items():
                    if (stream := self._streams.get(number)) is not None:
                        stream.request.logprobs.extend(logprobs)
                for number, logprobs in message.prompt_logprobs.items():
                    if (stream := self._streams.get(number)) is not None:
                        stream.request.prompt_logprobs = logprobs
                for number, cached in message.cached.items():
                    if (stream := self._streams.get(number)) is not None:
                        stream.request.cached_first = cached
            case Finished():
                if (stream := self._streams.get(message.number)) is not None:
                    message.end(stream)
            case Stats():
                answer = self._questions.get(message.number)
                if answer is not None and not answer.done():
                    answer.set_result(message.stats)
            case Ready():
                self.model = message
                self._ready.set()
            case Failed():
                self._reason = message.reason

    def _lost(self) -> None:
        self._reason = self._reason or f"the engine's process {self.pid} has ended unexpectedly"
        self._gone.set()
        stopped = EngineStopped(self._reason)
        for stream in self._streams.values():
            if not stream.done:
                stream.fail(stopped)
        for answer in self._questions.values():
            if not answer.done():
                answer.set_exception(stopped)
