"""The front's side of an engine's process."""

from collections.abc import AsyncGenerator
from itertools import count

from threeloops.product.request import EngineStopped, Request
from threeloops.product.service.engine.link import EngineProcess
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
        self._process = EngineProcess("the engine's process", FromEngine, self._receive, self._lost)

    @classmethod
    async def start(cls, spec: EngineSpec) -> "EngineClient":
        """Start the process. It is ready once its model is loaded: see `wait_ready`."""
        self = cls(spec)
        await self._process.start("threeloops.product.service.engine.process", Load(spec))
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ready(self) -> bool:
        """Whether it takes requests now."""
        return self._process.ready

    @property
    def reason(self) -> str:
        """Why the process has ended; "" while it has not."""
        return self._process.reason if self._process.gone.is_set() else ""

    async def wait_ready(self) -> None:
        """Raises EngineStopped, with the reason, if the process ends before its model is loaded."""
        await self._process.wait_ready()

    async def wait_gone(self) -> None:
        """Wait until the process has ended."""
        await self._process.wait_gone()

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
        self._process.send(Submit.of(number, request))
        try:
            async for token in stream:
                if stream.read % half == 0:
                    self._process.send(Credit(number, half))
                yield token
        finally:
            del self._streams[number]
            if not stream.done:
                self._process.send(Cancel(number))

    async def stats(self, seconds: float = _STATS_SECONDS) -> EngineStats:
        """Raises EngineStopped if the process is not ready, is gone, or does not answer within `seconds`."""
        if not self.ready:
            raise EngineStopped(self.reason or "the engine is loading its model")
        number = next(self._numbers)
        return await self._process.ask(number, AskStats(number), seconds)

    def kill(self, reason: str) -> None:
        """End the process at once, even if it is stopped. Readers get EngineStopped with the reason."""
        self._process.kill(reason)

    async def close(self) -> None:
        """End the process at any time. Readers get EngineStopped."""
        await self._process.close("the engine was closed")

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
                self._process.answer(message.number, message.stats)
            case Ready():
                self.model = message
                self._process.loaded.set()
            case Failed():
                self._process.reason = message.reason

    def _lost(self) -> None:
        for stream in self._streams.values():
            if not stream.done:
                stream.fail(EngineStopped(self._process.reason))
