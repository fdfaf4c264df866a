"""The front's side of a prefill process and a decode process."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import count
from pathlib import Path

from threeloops.product.disaggregated.real.messages import (
    Connect,
    Connected,
    Disconnected,
    FromRole,
    HasRead,
    Progress,
    RoleState,
    StartRole,
)
from threeloops.product.disaggregated.real.prefill import HANDOVERS
from threeloops.product.disaggregated.real.side import Side
from threeloops.product.request import EngineStopped, Request
from threeloops.product.service.engine.messages import Cancel, EngineSpec, Finished, Submit
from threeloops.product.token_stream import TokenStream

__all__ = ["DisaggregatedService"]

_FIRST_WAIT = 0.1
_LONGEST_WAIT = 10.0
_ANSWER_SECONDS = 30.0
_LOAD_SECONDS = 600.0


class DisaggregatedService:
    """A service in which one process computes prompts and another decodes. Both come back when they die.

    A request whose prompt is computed or waiting survives the death of the decode process. A request that decodes
    survives the death of the prefill process. All others end with an error. Until both processes are there again,
    `generate` raises EngineStopped at once.

    Args:
        prefill, decode: the two engines. Model, dtype and block size must be the same.
        handover: when blocks leave, one of `HANDOVERS`.
        local: requests for which this is true are computed by the decode process alone, for example short prompts.
        load_seconds: the time that a process has to load its model.
        answer_seconds: a process that is silent for so long is killed and replaced.
    """

    def __init__(
        self,
        prefill: EngineSpec,
        decode: EngineSpec,
        *,
        handover: str = "layers",
        local: Callable[[Request], bool] = lambda request: False,
        load_seconds: float = _LOAD_SECONDS,
        answer_seconds: float = _ANSWER_SECONDS,
    ) -> None:
        if handover not in HANDOVERS:
            raise ValueError(f"handover = {handover!r}: expected one of {', '.join(HANDOVERS)}")
        self.specs = {"prefill": prefill, "decode": decode}
        self.handover = handover
        self.local = local
        self.load_seconds = load_seconds
        self.answer_seconds = answer_seconds
        self.restarts = 0
        self._sides: dict[str, Side] = {}
        self._streams: dict[int, TokenStream] = {}
        self._numbers = count()
        self._starts = count()
        self._generation = 0
        self._is_connected = False
        self._connecting: asyncio.Future[str] | None = None  # its result is the reason why it failed, or ""
        self._broken = asyncio.Event()
        self._reason = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closed = False
        self._folder = Path(tempfile.mkdtemp(prefix="threeloops-"))

    async def __aenter__(self) -> "DisaggregatedService":
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> "DisaggregatedService":
        """Start both processes and wait until they are connected. Raises EngineStopped, with the reason, if they cannot
        be: a model that does not load the first time will not the second time."""
        try:
            await self._start_missing()
            await self._connect()
        except BaseException:
            await self.close()
            raise
        self._tasks = [asyncio.create_task(self._repair_forever()), asyncio.create_task(self._listen())]
        return self

    @property
    def ready(self) -> bool:
        return self._is_connected and not self._is_closed and all(side.ready for side in self._sides.values())

    @property
    def reason(self) -> str:
        """Why the service takes no requests now, or "" if it does."""
        return "" if self.ready else self._reason or "the service is starting"

    @property
    def pids(self) -> dict[str, int]:
        """The ids of the two processes, by role."""
        return {role: side.pid for role, side in self._sides.items()}

    async def wait_ready(self, seconds: float) -> None:
        """Raises EngineStopped, with the reason, if it is not ready within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while not self.ready:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise EngineStopped(f"not ready within {seconds:g} s: {self.reason}") from None

    async def states(self) -> dict[str, RoleState]:
        """Return the state of each process, by role. Raises EngineStopped if one is gone or silent."""
        return {role: await side.state(self.answer_seconds) for role, side in self._sides.items()}

    async def generate(self, request: Request) -> AsyncGenerator[int, None]:
        """Yield the request's tokens as they are produced, as `EngineClient.generate` does, with the same errors."""
        if not self.ready:
            raise EngineStopped(self.reason)
        side = self._sides["decode" if self.local(request) else "prefill"]
        number = next(self._numbers)
        window = self.specs["decode"].window
        stream = self._streams[number] = TokenStream(request, window)
        half = max(1, window // 2)
        side.send(Submit.of(number, request))
        try:
            async for token in stream:
                if stream.read % half == 0:
                    self._sides["decode"].send(HasRead(number, stream.read))
                yield token
        finally:
            del self._streams[number]
            if not stream.done:
                self._cancel(number)

    async def close(self) -> None:
        """End both processes. Readers get EngineStopped."""
        self._is_closed = True
        self._reason = "the service was closed"
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(side.close(self._reason) for side in self._sides.values()))
        for stream in self._streams.values():
            if not stream.done:
                stream.fail(EngineStopped(self._reason))
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    # Messages of the processes.

    def _hear(self, side: Side, message: FromRole) -> None:
        if side is not self._sides.get(side.role):
            return
        match message:
            case Progress():
                if (stream := self._streams.get(message.number)) is not None and not stream.done:
                    _add(stream, message)
            case Finished():
                if (stream := self._streams.get(message.number)) is not None and not stream.done:
                    message.end(stream)
            case Connected() if side.role == "prefill" and message.generation == self._generation:
                self._finish_connecting("")
            case Disconnected() if message.generation == self._generation:
                self._finish_connecting(message.reason)
                if self._is_connected:
                    self._reason = f"the connection of the two processes has ended: {message.reason}"
                    self._break()

    def _cancel(self, number: int) -> None:
        for side in self._sides.values():
            side.send(Cancel(number))

    # Repairs.

    def _finish_connecting(self, reason: str) -> None:
        if self._connecting is not None and not self._connecting.done():
            self._connecting.set_result(reason)

    def _break(self) -> None:
        self._is_connected = False
        self._broken.set()

    def _lost(self, side: Side) -> None:
        if side is self._sides.get(side.role):
            self._reason = self._reason if self._is_closed else side.reason
            self._finish_connecting(side.reason)
            self._break()

    async def _repair_forever(self) -> None:
        """Whenever something breaks, decide which requests are left, and bring back what is missing."""
        wait = _FIRST_WAIT
        while True:
            await self._broken.wait()
            if self.ready:
                self._broken.clear()
                continue
            while self._broken.is_set():  # again, if a side dies while the other answers
                self._broken.clear()
                await self._settle()
            try:
                await self._start_missing()
                await self._connect()
                wait = _FIRST_WAIT
            except (EngineStopped, OSError) as error:
                self._reason = str(error)
                self._broken.set()
                await asyncio.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)

    async def _settle(self) -> None:
        """End the requests that are on neither side, and let each of the others be on one."""
        before = set(self._streams)
        here: dict[str, set[int]] = {"prefill": set(), "decode": set()}
        for role, side in self._sides.items():
            if side.ready:
                try:
                    here[role] = await side.unfinished(self._generation, self.answer_seconds)
                except EngineStopped as error:
                    side.kill(str(error))
                    await side.gone.wait()
        reason = next((side.reason for side in self._sides.values() if side.gone.is_set()), self._reason)
        told = {number: self._streams[number].available for number in before & set(self._streams)}
        for number in _twice(told, here["prefill"], here["decode"]):
            self._sides["prefill"].send(Cancel(number))
        for number in _orphans(told, here["prefill"], here["decode"]):
            if not (stream := self._streams[number]).done:
                stream.fail(EngineStopped(reason))
                self._cancel(number)

    async def _start_missing(self) -> None:
        """Start the processes that are not running. Raises EngineStopped."""
        missing = [role for role, side in self._sides.items() if side.gone.is_set()] or (
            [role for role in self.specs if role not in self._sides]
        )
        for role in missing:
            if role in self._sides:
                await self._sides[role].close("it was replaced")
                self.restarts += 1
            decode = self.specs["decode"]
            listen = str(self._folder / f"{next(self._starts)}.sock") if role == "decode" else ""
            start = StartRole(role, self.specs[role], self.handover, decode.blocks * decode.block_size, listen)
            side = Side(start, self._hear, self._lost)
            await side.launch()
            self._sides[role] = side
        await asyncio.gather(*(self._sides[role].wait_loaded(self.load_seconds) for role in missing))

    async def _connect(self) -> None:
        """Let the prefill process connect to the decode process. Raises EngineStopped."""
        self._generation += 1
        self._connecting = asyncio.get_running_loop().create_future()
        self._sides["prefill"].send(Connect(self._sides["decode"].listens, self._generation))
        try:
            async with asyncio.timeout(self.answer_seconds):
                reason = await self._connecting
        except TimeoutError:
            reason = f"the prefill process has not connected within {self.answer_seconds:g} s"
            self._sides["prefill"].kill(reason)
        if reason or not all(side.ready for side in self._sides.values()):
            raise EngineStopped(reason or self._reason)
        self._is_connected = True

    async def _listen(self) -> None:
        """Kill a process that is silent for too long. It is asked twice: if this process was stopped too, the first
        answer is late for no fault of the other's."""
        while True:
            await asyncio.sleep(self.answer_seconds / 4)
            for side in list(self._sides.values()):
                if side.ready and not await self._answers(side):
                    side.kill(f"{side.name} {side.pid} gave no sign of life for {self.answer_seconds:g} s")

    async def _answers(self, side: Side) -> bool:
        for _ in range(2):
            with suppress(EngineStopped):
                await side.state(self.answer_seconds / 2)
                return True
        return not side.ready


def _twice(told: Mapping[int, int], prefill: AbstractSet[int], decode: AbstractSet[int]) -> AbstractSet[int]:
    """Return the requests that the prefill process must forget, because they run on the decode process.

    `prefill` and `decode` are the requests that are left on each side after a connection between the two has ended.
    `told` has the number of tokens of each request that the front waits for. Their acknowledgement was lost.
    """
    return told.keys() & prefill & decode


def _orphans(told: Mapping[int, int], prefill: AbstractSet[int], decode: AbstractSet[int]) -> AbstractSet[int]:
    """Return the requests that must end with an error. Arguments are those of `_twice`.

    They are on neither side, or their tokens after the first came from a decode process that is gone.
    """
    decoded = {number for number, tokens in told.items() if tokens > 1}
    return (told.keys() - prefill - decode) | (decoded - decode)


def _add(stream: TokenStream, progress: Progress) -> None:
    """Add the tokens that are new. Both processes tell about the first."""
    request = stream.request
    told = len(request.output) - progress.start
    if not progress.start:
        request.prompt_logprobs = request.prompt_logprobs or progress.prompt_logprobs
        request.cached_first = progress.cached
    request.output.extend(progress.tokens[told:])
    request.logprobs.extend(progress.logprobs[told:])
    stream.available = len(request.output)
    stream.changed.set()
