"""Keep an engine's process running. A process that died or stopped responding is replaced, after a growing wait."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from threeloops.product.request import EngineStopped, Request
from threeloops.product.service.engine.client import EngineClient
from threeloops.product.service.engine.messages import EngineSpec, EngineStats, Ready
from threeloops.product.text import ByteTokenizer, Tokenizer, load_tokenizer

__all__ = ["ServedModel", "Supervisor"]

_FIRST_WAIT = 0.25
_LONGEST_WAIT = 30.0
_LOAD_SECONDS = 600.0
_STEP_SECONDS = 60.0


@dataclass(frozen=True)
class ServedModel:
    """The properties of the served model that requests are checked against."""

    tokenizer: Tokenizer
    vocabulary: int
    """The number of tokens that the model has weights for. Every valid token is below it."""
    longest: int
    """The largest number of tokens of a request, including its answer."""


class Supervisor:
    """An engine that comes back. Between two processes it is not ready, and `generate` raises EngineStopped at once.

    The wait before a restart is `first_wait` seconds, doubled with every failure up to `longest_wait`; a process that
    was ready for longer than `longest_wait` makes it start over.

    A process answers between two steps. One that is silent for `step_seconds` hangs, or was stopped, and is killed; so
    is one that has not loaded its model after `load_seconds`.
    """

    def __init__(
        self,
        spec: EngineSpec,
        *,
        first_wait: float = _FIRST_WAIT,
        longest_wait: float = _LONGEST_WAIT,
        load_seconds: float = _LOAD_SECONDS,
        step_seconds: float = _STEP_SECONDS,
        start: Callable[[EngineSpec], Awaitable[EngineClient]] = EngineClient.start,
    ) -> None:
        self.spec = spec
        self.first_wait = first_wait
        self.longest_wait = longest_wait
        self._start = start
        self.load_seconds = load_seconds
        self.step_seconds = step_seconds
        self.tokenizer: Tokenizer = ByteTokenizer()
        """The model's, once it is open."""
        self.restarts = 0
        self._reason = ""
        """The reason of the last failure, or "" if there was none since the engine was ready."""
        self._client: EngineClient | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def open(self) -> "Supervisor":
        """Start the first process and wait until it is ready. Raises EngineStopped, with the reason, if it cannot: a
        model that does not load the first time will not the second time."""
        try:
            await self._launch()
            if self.model is not None and self.model.files:
                self.tokenizer = await asyncio.to_thread(load_tokenizer, self.model.files)
        except BaseException:
            await self.close()
            raise
        self._task = asyncio.create_task(self._watch())
        return self

    @property
    def ready(self) -> bool:
        return self._client is not None and self._client.ready and not self._closed

    @property
    def reason(self) -> str:
        """Why no process is ready, if the last one ended or could not start; empty while one is."""
        return "" if self.ready else self._reason

    @property
    def model(self) -> Ready | None:
        return self._client.model if self._client is not None else None

    @property
    def served(self) -> ServedModel:
        """Raises EngineStopped while the model is being loaded."""
        if (model := self.model) is None:
            raise EngineStopped(self.reason or "the engine is loading its model")
        room = min(model.max_sequence, self.spec.blocks * self.spec.block_size)
        return ServedModel(self.tokenizer, model.vocabulary, room + 1)  # the last token is never fed back

    @property
    def pid(self) -> int | None:
        """The id of the current or last process, or None before the first."""
        return self._client.pid if self._client is not None else None

    def generate(self, request: Request) -> AsyncGenerator[int, None]:
        """Generate like `EngineClient.generate`. If there is no engine, the error comes at once."""
        return self._running().generate(request)

    async def stats(self) -> EngineStats:
        """Return the same as `EngineClient.stats`."""
        return await self._running().stats()

    async def close(self) -> None:
        """End the process and do not start another. Readers get EngineStopped."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._client is not None:
            await self._client.close()

    def _running(self) -> EngineClient:
        if self._client is None or self._closed:
            raise EngineStopped("the engine is being closed" if self._closed else "the engine has not been started")
        return self._client

    async def _launch(self) -> None:
        self._client = client = await self._start(self.spec)
        try:
            async with asyncio.timeout(self.load_seconds):
                await client.wait_ready()
        except TimeoutError:
            late = f"the model {self.spec.model!r} was not loaded within {self.load_seconds:g} s: see why, or raise "
            client.kill(f"{late}load_seconds")
            await client.wait_gone()
            raise EngineStopped(client.reason) from None
        self._reason = ""

    async def _watch(self) -> None:
        wait = self.first_wait
        clock = asyncio.get_running_loop().time
        while True:
            assert self._client is not None
            since = clock()
            listening = asyncio.create_task(self._listen(self._client))
            try:
                await self._client.wait_gone()
            finally:
                listening.cancel()
            self._reason = self._client.reason
            if clock() - since > self.longest_wait:
                wait = self.first_wait
            while True:
                await asyncio.sleep(wait)
                wait = min(2 * wait, self.longest_wait)
                self.restarts += 1
                try:
                    await self._launch()
                    break
                except (EngineStopped, OSError) as error:
                    self._reason = str(error)

    async def _listen(self, client: EngineClient) -> None:
        """Kill the process when it has been silent for too long. It is asked twice: if this process was stopped too,
        the first answer is late for no fault of the other's."""
        while client.ready:
            await asyncio.sleep(self.step_seconds / 4)
            for _ in range(2):
                with suppress(EngineStopped):
                    await client.stats(self.step_seconds / 2)
                    break
            else:
                silent = f"the engine's process {client.pid} gave no sign of life for {self.step_seconds:g} s"
                client.kill(f"{silent}: it is replaced")
                return
