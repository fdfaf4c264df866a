"""Replay a trace on a prefill role and a decode role in one thread, each with a clock of its own.

With `TurnClock`, a side's time is the CPU seconds of its turns. A side that waits for the other moves its clock to the
moment of the message, so the two run at the same time however few cores there are, and however busy they are. With
virtual clocks and simulated executors, the same roles predict.
"""

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Protocol

import msgspec

from threeloops.frames import Buffer
from threeloops.product.batching import Engine
from threeloops.product.decode import PagedCache
from threeloops.product.disaggregated.real.decode import DecodeRole
from threeloops.product.disaggregated.real.messages import FromRole, Progress
from threeloops.product.disaggregated.real.prefill import PrefillRole
from threeloops.product.loadgen.trace import Arrival, requests_of
from threeloops.product.request import Finish, Request
from threeloops.product.service.engine.messages import Finished, Submit
from threeloops.simulation.clock import Clock
from threeloops.training.collectives.cost import Link

__all__ = ["SideClock", "TurnClock", "TwoSidedReplay", "replay_two_sides"]


class SideClock(Clock, Protocol):
    """The clock of a side. `begin` and `end` surround its turns."""

    def begin(self) -> None: ...

    def end(self) -> None: ...


class TurnClock:
    """Seconds that stand still between two turns of a side, and are the CPU seconds of this process in a turn."""

    def __init__(self) -> None:
        self._at = 0.0
        self._began: float | None = None

    def now(self) -> float:
        return self._at if self._began is None else self._at + time.process_time() - self._began

    def sleep_until(self, moment: float) -> None:
        """Move to `moment`, between two turns."""
        if self._began is None:
            self._at = max(self._at, moment)

    def begin(self) -> None:
        self._began = time.process_time()

    def end(self) -> None:
        self._at = self.now()
        self._began = None


@dataclass(eq=False)
class _Side:
    """A role, its clock, and the calls that reach it at a moment."""

    role: PrefillRole | DecodeRole
    clock: SideClock
    coming: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    is_busy: bool = False

    @property
    def next(self) -> float:
        """The moment of the next turn, or infinity if there is nothing to do."""
        if self.is_busy:
            return self.clock.now()
        return max(self.clock.now(), self.coming[0][0]) if self.coming else float("inf")

    def turn(self) -> None:
        self.clock.sleep_until(self.next)
        now = self.clock.now()
        self.clock.begin()
        while self.coming and self.coming[0][0] <= now:
            heapq.heappop(self.coming)[2]()
        self.is_busy = self.role.step()
        self.clock.end()


@dataclass
class TwoSidedReplay:
    """The requests of a trace as their readers saw them, and the bytes of keys and values that were sent."""

    requests: list[Request]
    sent_bytes: int = 0


def replay_two_sides(
    arrivals: Sequence[Arrival],
    new_side: Callable[[Any], tuple[Engine, PagedCache]],
    link: Link,
    handover: str = "layers",
    *,
    new_clock: Callable[[], SideClock] = TurnClock,
    vocabulary: int = 256,
) -> TwoSidedReplay:
    """Run a trace on two engines until every request has ended. The front's clock is that of the side that tells it.

    `new_side` makes an engine on a clock, and its cache. Messages to the decode side leave one at a time.
    """
    return _TwoSides(new_side, link, handover, new_clock).run(requests_of(arrivals, vocabulary))


class _TwoSides:
    def __init__(
        self,
        new_side: Callable[[Any], tuple[Engine, PagedCache]],
        link: Link,
        handover: str,
        new_clock: Callable[[], SideClock],
    ) -> None:
        self._link = link
        self._free_at = 0.0  # of the prefill side's end of the link
        self._order = count()
        self._requests: list[Request] = []
        self._sent_bytes = 0
        clocks = new_clock(), new_clock()
        engine, cache = new_side(clocks[1])
        self._decoder = DecodeRole(engine, cache, partial(self._tell, clocks[1]), window=1 << 62)
        room = engine.scheduler.blocks.blocks * engine.scheduler.blocks.block_size
        engine, cache = new_side(clocks[0])
        self._prefiller = PrefillRole(engine, cache, partial(self._tell, clocks[0]), room=room, handover=handover)
        self._prefill = _Side(self._prefiller, clocks[0])
        self._decode = _Side(self._decoder, clocks[1])
        self._prefiller.connected(self._to_decode)
        self._decoder.connected(self._to_prefill)

    def run(self, requests: list[Request]) -> TwoSidedReplay:
        self._requests = requests
        for number, request in enumerate(requests):
            self._push(self._prefill, request.arrival, partial(self._prefiller.submit, Submit.of(number, request)))
        while (side := min(self._prefill, self._decode, key=lambda side: side.next)).next < float("inf"):
            side.turn()
        return TwoSidedReplay(requests, self._sent_bytes)

    def _push(self, side: _Side, moment: float, call: Callable[[], None]) -> None:
        heapq.heappush(side.coming, (moment, next(self._order), call))

    def _to_decode(self, message: msgspec.Struct, blocks: Buffer) -> None:
        self._sent_bytes += len(blocks)
        self._free_at = max(self._free_at, self._prefill.clock.now()) + len(blocks) / self._link.bandwidth
        call: Any = partial(self._decoder.hear, message, bytearray(blocks))  # type: ignore[arg-type]
        self._push(self._decode, self._free_at + self._link.latency, call)

    def _to_prefill(self, message: msgspec.Struct, blocks: Buffer) -> None:
        call: Any = partial(self._prefiller.hear, message)  # type: ignore[arg-type]
        self._push(self._prefill, self._decode.clock.now() + self._link.latency, call)

    def _tell(self, clock: SideClock, message: FromRole) -> None:
        if isinstance(message, Progress):
            request = self._requests[message.number]
            new = message.tokens[len(request.output) - message.start :]
            request.output += new
            request.token_times += [clock.now()] * len(new)
        elif isinstance(message, Finished):
            request = self._requests[message.number]
            request.finish = Finish(message.outcome) if message.outcome in ("stop", "length") else Finish.ERROR
            request.error = message.message
