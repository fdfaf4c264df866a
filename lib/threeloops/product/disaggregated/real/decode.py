"""The role that receives the keys and values of prompts, and computes all tokens after the first."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from threeloops.product.batching import Engine
from threeloops.product.decode import PagedCache
from threeloops.product.disaggregated.real.messages import (
    Abandon,
    Blocks,
    FromPrefill,
    FromRole,
    Handed,
    HandoverError,
    HasRead,
    Progress,
    Received,
    Reserve,
    Reserved,
)
from threeloops.product.disaggregated.real.prefill import Send
from threeloops.product.request import Batch, Request
from threeloops.product.service.engine.messages import Finished, Submit
from threeloops.product.token_stream import Backlog

__all__ = ["DecodeRole"]


@dataclass(eq=False)
class _Arrival:
    """A request whose blocks are reserved. `filled`: for each layer, the number of blocks that are here."""

    request: Request
    filled: list[int] = field(default_factory=list)


class DecodeRole:
    """An engine that decodes what another one has begun. Methods are called between two steps.

    `tell` gives a message to the front. A reader may be `window` tokens behind before its request is paused.
    """

    def __init__(
        self, engine: Engine, cache: PagedCache, tell: Callable[[FromRole], None], *, window: int = 64
    ) -> None:
        self.engine = engine
        self._cache = cache
        self._tell = tell
        self._window = window
        self._send: Send | None = None
        self._asked: deque[tuple[int, Request]] = deque()
        self._arrivals: dict[int, _Arrival] = {}
        self._streams: dict[int, Backlog] = {}

    @property
    def unfinished(self) -> list[int]:
        """The numbers of the requests that run here, or wait to run again."""
        return list(self._streams)

    def submit(self, submitted: Submit) -> None:
        """Compute a whole request here, or tell the front why it can never run."""
        request = submitted.request(self.engine.clock.now())
        try:
            self.engine.add(request)
        except ValueError as error:
            self._tell(Finished.refused(submitted.number, error))
            return
        self._streams[submitted.number] = Backlog(request, self._window)

    def cancel(self, number: int) -> None:
        """Forget a request, because the front says that its reader is gone."""
        self._forget(number)

    def read(self, message: HasRead) -> None:
        """Take in that a reader has taken tokens."""
        if (stream := self._streams.get(message.number)) is not None:
            stream.read = message.tokens
            stream.resume_if_read(self.engine.scheduler.resume)

    def connected(self, send: Send) -> None:
        """Answer to this other side from now on."""
        self.disconnected()
        self._send = send

    def disconnected(self) -> None:
        """Give the blocks of all requests back that have not arrived as a whole."""
        self._send = None
        self._asked.clear()
        for number in list(self._arrivals):
            self._forget(number)

    def hear(self, message: FromPrefill, data: bytes | bytearray | memoryview) -> None:
        """Take in a message of the other side. Raises HandoverError if it makes no sense."""
        match message:
            case Reserve():
                self._ask(message)
            case Blocks():
                self._write(message, data)
            case Handed():
                self._receive(message)
            case Abandon():
                self._forget(message.number)
            case _:
                raise HandoverError(f"{type(message).__name__} after the connection was made")

    def step(self) -> bool:
        """Reserve what there is room for, and compute a step. Returns whether there was anything to compute."""
        self._reserve()
        batch = self.engine.step()
        self._tell_new(batch)
        return bool(batch.chunks)

    def _ask(self, asked: Reserve) -> None:
        number = asked.request.number
        if str(number) in self.engine.requests or any(number == other for other, _ in self._asked):
            raise HandoverError(f"request {number}: its blocks were asked for twice")
        self._asked.append((number, asked.request.request(self.engine.clock.now())))

    def _reserve(self) -> None:
        """Reserve blocks in the order in which they were asked for."""
        while self._asked and self._send is not None:
            number, request = self._asked[0]
            try:
                if not self.engine.reserve(request):
                    return
            except ValueError as error:
                self._send(Finished.refused(number, error), b"")
            else:
                cached = request.cached // self._cache.block_size
                self._arrivals[number] = _Arrival(request, [cached for _ in self._cache.layers])
                self._send(Reserved(number, cached), b"")
            self._asked.popleft()

    def _write(self, blocks: Blocks, data: bytes | bytearray | memoryview) -> None:
        if (arrival := self._arrivals.get(blocks.number)) is None:  # cancelled meanwhile
            return
        layers = range(blocks.layer, blocks.layer + blocks.layers)
        first = blocks.first
        end = first + blocks.count
        table = arrival.request.block_table
        if not 0 <= blocks.layer < layers.stop <= len(self._cache.layers) or not 0 <= first < end <= len(table):
            raise HandoverError(
                f"request {blocks.number}: blocks {first} to {end - 1} in layers {layers.start} to {layers.stop - 1}; "
                f"it has {len(table)} blocks in {len(self._cache.layers)} layers"
            )
        for layer in layers:
            if arrival.filled[layer] != first:
                raise HandoverError(
                    f"request {blocks.number}: block {first} in layer {layer} follows {arrival.filled[layer]} blocks: "
                    f"expected block {arrival.filled[layer]}"
                )
        try:
            self._cache.write_blocks(table[first:end], data, layers)
        except ValueError as error:
            raise HandoverError(f"request {blocks.number}: {error}") from None
        arrival.filled[layers.start : layers.stop] = [end] * len(layers)

    def _receive(self, handed: Handed) -> None:
        number = handed.number
        if (arrival := self._arrivals.get(number)) is None:  # cancelled meanwhile
            return
        request = arrival.request
        if missing := [layer for layer, filled in enumerate(arrival.filled) if filled < len(request.block_table)]:
            raise HandoverError(
                f"request {number} is handed over without block {arrival.filled[missing[0]]} of layer {missing[0]}: "
                f"expected {len(request.block_table)} blocks in each layer"
            )
        del self._arrivals[number]
        request.logprobs += handed.logprobs
        request.prompt_logprobs += handed.prompt_logprobs
        self.engine.receive(request.id, handed.token)
        request.cached_first = handed.cached
        if request.finish is not None:
            raise HandoverError(f"request {number} is handed over after it has ended: token {handed.token} ends it")
        self._streams[number] = Backlog(request, self._window)
        if self._send is not None:
            self._send(Received(number), b"")

    def _forget(self, number: int) -> None:
        """Forget a request in any phase and free its blocks."""
        self._asked = deque(pair for pair in self._asked if pair[0] != number)
        self._arrivals.pop(number, None)
        self._streams.pop(number, None)
        self.engine.cancel(str(number))

    def _tell_new(self, batch: Batch) -> None:
        """Tell the front about new tokens and ends."""
        for chunk in batch.chunks:
            request = chunk.request
            number = int(request.id)
            if (stream := self._streams.get(number)) is None:
                continue
            start = stream.available
            if len(request.output) > start:
                stream.available = len(request.output)
                prompt_logprobs = [] if start else request.prompt_logprobs
                cached = 0 if start else request.cached_first or 0
                tokens = request.output[start:]
                self._tell(Progress(number, start, tokens, request.logprobs[start:], prompt_logprobs, cached))
            if request.finish is not None:
                self._tell(Finished.of(request))
                del self._streams[number]
            else:
                stream.pause_if_full(self.engine.scheduler.pause)
