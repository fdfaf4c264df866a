"""The way of a cache from a prefill machine to a decode machine: a place for it, its messages, and its arrival."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from threeloops.product.disaggregated.description import Deployment
from threeloops.product.disaggregated.machine import Machine
from threeloops.product.disaggregated.policies import DecodeState, PoolLoad
from threeloops.product.disaggregated.record import Journey
from threeloops.product.disaggregated.transfer import ComputedChunk, Part, send
from threeloops.product.request import Request
from threeloops.simulation.clock import VirtualClock

__all__ = ["Attempt", "Delivery"]


@dataclass(eq=False)
class Attempt:
    """One try of a request. Its prompt includes the tokens that the client has. The prefill machine computes `first`,
    and the decode machine `rest`."""

    journey: Journey
    first: Request
    rest: Request
    prefill: Machine | None = None
    decode: Machine | None = None
    chunks: list[tuple[int, ComputedChunk]] = field(default_factory=list)  # that may leave, each with its first token
    logged: int = 0  # tokens of the prompt in `chunks`
    is_reserved: bool = False
    is_computed: bool = False
    epoch: int = 0  # of its placement on a decode machine: what was sent in another one does not count
    travelling: int = 0  # messages that have not arrived

    def tell(self, machine: Machine, command: Callable[[], object]) -> None:
        """Tell a machine something, unless this try is over or placed elsewhere by then."""
        epoch = self.epoch
        machine.tell(lambda: command() if self.epoch == epoch else None)


class Delivery:
    """Prompts that wait for room on a decode machine, first come, first served, and those that are on their way."""

    def __init__(self, deployment: Deployment, clock: VirtualClock, machines: Sequence[Machine]):
        self.waiting: deque[Attempt] = deque()
        self._deployment = deployment
        self._clock = clock
        self._machines = machines
        self._turn = 0
        self._is_placing = False

    def needed_blocks(self, attempt: Attempt) -> int:
        return -(-len(attempt.rest.prompt) // self._deployment.block_size)

    def state(self, machine: Machine, attempt: Attempt) -> DecodeState:
        """Return what a router sees of a machine, for this prompt."""
        free = machine.blocks.free - sum(machine.promised.values())
        running = len(machine.engine.requests) + len(machine.promised)
        return DecodeState(machine.life.name, running, free, self.needed_blocks(attempt))

    def require_room(self, attempt: Attempt) -> None:
        """Raises ValueError if no decode machine could ever hold the answer."""
        longest = len(attempt.rest.prompt) + attempt.rest.sampling.max_tokens - 1
        room = self._deployment.decode.blocks * self._deployment.block_size
        if longest > room:
            raise ValueError(f"{longest} tokens of prompt and answer, and a decode machine has room for {room}")

    def load(self) -> PoolLoad:
        """Return the load of the decode pool, as the rule for roles sees it."""
        able = [machine for machine in self._machines if machine.role == "decode" and machine.takes]
        if not able:
            return PoolLoad(0, math.inf)
        blocks = self._deployment.decode.blocks
        seats = self._deployment.decode.policy.max_running
        taken = [max(1 - machine.blocks.free / blocks, len(machine.engine.requests) / seats) for machine in able]
        needed = sum(self.needed_blocks(attempt) for attempt in self.waiting)
        return PoolLoad(len(able), (sum(taken) + max(needed / blocks, len(self.waiting) / seats)) / len(able))

    def place(self, attempt: Attempt) -> None:
        """Find a decode machine, now or as soon as one has room."""
        self.waiting.append(attempt)
        self.place_waiting()

    def place_waiting(self) -> None:
        if self._is_placing:  # to place one may give room to the next: the loop below goes on with that
            return
        self._is_placing = True
        while self.waiting and (machine := self._choose(self.waiting[0])) is not None:
            self._promise(machine, self.waiting.popleft())
        self._is_placing = False

    def log(self, attempt: Attempt, chunk: ComputedChunk) -> None:
        """Note a chunk of a prompt that may leave, and let it leave if its blocks are reserved."""
        attempt.chunks.append((attempt.logged, chunk))
        attempt.logged += chunk.tokens
        if attempt.is_reserved:
            self._send(attempt, *attempt.chunks[-1])

    def receive_if_complete(self, attempt: Attempt) -> None:
        """Let the answer go on, once the prompt is computed and all messages have arrived."""
        prefill = attempt.prefill
        decode = attempt.decode
        if not (attempt.is_computed and attempt.is_reserved and not attempt.travelling and prefill and decode):
            return
        attempt.journey.arrived = self._clock.now()
        attempt.prefill = None
        prefill.leave(attempt.first)
        token = attempt.first.output[0]
        attempt.tell(decode, lambda: decode.engine.receive(attempt.rest.id, token))

    def _choose(self, attempt: Attempt) -> Machine | None:
        """Return the router's choice among the decode machines that have room, if there are any."""
        able = []
        states = []
        pool = self._deployment.decode
        for machine in self._machines:
            if machine.role == "decode" and machine.takes and not machine.engine.scheduler.waiting:
                state = self.state(machine, attempt)
                if state.running < pool.policy.max_running and state.needed_blocks <= state.free_blocks:
                    able.append(machine)
                    states.append(state)
        if not able:
            return None
        self._turn += 1
        return able[self._deployment.decode_router(states, len(attempt.rest.prompt), self._turn - 1)]

    def _promise(self, machine: Machine, attempt: Attempt) -> None:
        """Let a machine reserve blocks between two of its steps."""
        attempt.decode = machine
        attempt.epoch += 1
        machine.promised[attempt.rest] = self.needed_blocks(attempt)
        attempt.tell(machine, lambda: self._reserve(machine, attempt))

    def _reserve(self, machine: Machine, attempt: Attempt) -> None:
        del machine.promised[attempt.rest]
        if not machine.engine.reserve(attempt.rest):
            attempt.decode = None
            self.waiting.appendleft(attempt)
            return
        attempt.is_reserved = True
        attempt.journey.decode = machine.life.name
        attempt.journey.placed = self._clock.now()
        for first, chunk in attempt.chunks:
            self._send(attempt, first, chunk)
        self.receive_if_complete(attempt)

    def _send(self, attempt: Attempt, first: int, chunk: ComputedChunk) -> None:
        """Plan the messages of a chunk that begins with token `first`, without tokens that are there already."""
        cached = max(0, attempt.rest.cached - first)
        if cached >= chunk.tokens:
            return
        epoch = attempt.epoch
        for part in self._deployment.handover.parts(ComputedChunk(chunk.start, chunk.end, chunk.tokens - cached)):
            attempt.travelling += 1
            ready = max(part.ready, self._clock.now())
            self._clock.at(ready, lambda size=part.bytes: self._depart(attempt, epoch, size))  # type: ignore[misc]

    def _depart(self, attempt: Attempt, epoch: int, size: float) -> None:
        if attempt.epoch != epoch or attempt.prefill is None or attempt.decode is None:
            return
        ports = [attempt.prefill.port, attempt.decode.port]
        arrival = send(Part(self._clock.now(), size), self._deployment.handover, ports)
        attempt.journey.bytes += size
        attempt.journey.messages += 1
        self._clock.at(arrival, lambda: self._land(attempt, epoch))

    def _land(self, attempt: Attempt, epoch: int) -> None:
        if attempt.epoch == epoch:
            attempt.travelling -= 1
            self.receive_if_complete(attempt)
