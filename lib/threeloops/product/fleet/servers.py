"""Two models of a replica's engine, with one interface: exact steps, or a formula between events.

`EngineModel` runs the course's own `Engine` with a `SimulatedExecutor`: every step, every block of the cache, prefix
hits and preemptions. A simulated second costs some thirty steps of Python, so use it for minutes.

`SharedModel` is for days. The running requests share the device and advance together, a token each per step. The time
of a step depends on how many run (a table). A prompt takes the device for itself, first come, first served. That is
processor sharing with a speed that depends on the load, so only arrivals, ends of prompts and ends of requests are
events. It has no blocks and no prefixes, so give it as many seats as the cache has room for. `shared_model` derives it
from the cost of a step. On the traces of the tests the two models differ by a few per cent.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import ClassVar, Protocol

from threeloops.product.batching import Engine, Policy, SimulatedExecutor, StepShape
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.request import Request
from threeloops.simulation.clock import VirtualClock

__all__ = ["EngineModel", "Server", "ServerModel", "SharedModel", "shared_model"]

_Cost = Callable[[StepShape], float]
"""Seconds of a step."""


class Server(Protocol):
    """An engine in virtual time. Its methods must be called in order of time. Tokens go to `Request.token_times`."""

    busy: float
    """Seconds in which the device computed."""
    steps: float
    """The steps that it made, each of which costs its host time."""

    @property
    def waiting(self) -> int:
        """Requests that are here and have no seat."""
        ...

    @property
    def next(self) -> float:
        """The time of the next change that comes by itself, or infinity if there is none."""
        ...

    def add(self, now: float, request: Request) -> None:
        """Add a request. Call `advance(now)` before. Raises ValueError if the request can never run here."""
        ...

    def cancel(self, now: float, request: Request) -> None:
        """Forget a request that nobody waits for any more. Call `advance(now)` before."""
        ...

    def advance(self, now: float) -> list[Request]:
        """Compute up to `now`, and return the requests that have ended since the last call."""
        ...


class ServerModel(Protocol):
    reads_tokens: ClassVar[bool]
    """Whether the values of a prompt's tokens matter, and not just how many there are."""

    def __call__(self, now: float) -> Server:
        """An empty server at `now`."""
        ...


@dataclass(frozen=True)
class EngineModel:
    """`Engine` with this cost of a step, policy, and cache."""

    cost: _Cost
    policy: Policy = field(default_factory=Policy)
    blocks: int = 4096
    block_size: int = 16
    reads_tokens: ClassVar[bool] = True

    def __call__(self, now: float) -> Server:
        return _EngineServer(self, now)


@dataclass(frozen=True)
class SharedModel:
    """`step_seconds[n - 1]`: seconds of a step in which n requests run. Its length is the number of seats.

    `prompt_seconds`: seconds per token of a prompt.
    """

    step_seconds: tuple[float, ...]
    prompt_seconds: float
    reads_tokens: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.step_seconds or not min(self.step_seconds) > 0 or not 0 <= self.prompt_seconds < math.inf:
            raise ValueError(
                f"step_seconds of {len(self.step_seconds)} sizes, prompt_seconds = {self.prompt_seconds!r}: expected "
                "at least one size, and times above 0"
            )

    @property
    def seats(self) -> int:
        return len(self.step_seconds)

    def tokens_per_second(self, running: int) -> float:
        """Return the output tokens per second of this many running requests, without prompts."""
        return running / self.step_seconds[running - 1]

    def requests_per_second(self, prompt: float, output: float) -> float:
        """Return the most requests with these numbers of tokens that one replica can complete per second, with all
        seats taken."""
        return 1 / (prompt * self.prompt_seconds + output / self.tokens_per_second(self.seats))

    def __call__(self, now: float) -> Server:
        return _SharedServer(self, now)


def shared_model(cost: _Cost, seats: int, prompt: int, output: int, budget: int = 512) -> SharedModel:
    """Make a `SharedModel` from the cost of a step, for requests of about this many tokens, in chunks of at most
    `budget`.

    The seconds of a prompt are such that the replica completes as many requests per second as a steady mix of steps
    does. A step is then as long as the arithmetic of its prompts asks for, even if few prompts would be free beside the
    weights and keys that it reads.
    """
    decode = (prompt + output // 2, 1, True)
    table = tuple(cost(StepShape((decode,) * running)) for running in range(1, seats + 1))
    of_request = 1 / _steady_rate(cost, seats, prompt, output, budget)
    return SharedModel(table, max(0.0, of_request - output * table[-1] / seats) / prompt)


def _steady_rate(cost: _Cost, seats: int, prompt: int, output: int, budget: int) -> float:
    """Return the requests per second of the best mix of steps in which as many prompts begin as requests end.

    With n requests decoding, n / output of them end per step, so n · prompt / output tokens of prompts join it, up to
    what the n tokens leave of the budget.
    """
    decode = (prompt + output // 2, 1, True)
    filled = budget * output / (output + prompt)  # the requests that fill the budget, with the prompts that join
    sizes = {seats, math.floor(filled), math.ceil(filled), *(1 << power for power in range(seats.bit_length()))}
    rates = []
    for running in sorted(size for size in sizes if 1 <= size <= seats):
        tokens = max(1, min(budget - running, round(running * prompt / output)))
        seconds = cost(StepShape((*(decode,) * running, (prompt // 2, tokens, False))))
        rates.append(min(tokens / prompt, running / output) / seconds)
    return max(rates)


class _EngineServer:
    """Steps that begin as soon as there is something to do. The engine has a clock of its own, ahead within a step."""

    def __init__(self, model: EngineModel, now: float):
        clock = VirtualClock()
        clock.sleep_until(now)
        blocks = BlockManager(model.blocks, model.block_size)
        self.engine = Engine(SimulatedExecutor(clock, model.cost), blocks, model.policy, clock)
        self.busy = self.steps = 0.0
        self._ends = math.inf  # of the step that is being made
        self._made: list[Request] = []  # requests that end with it

    @property
    def waiting(self) -> int:
        return len(self.engine.scheduler.waiting)

    @property
    def next(self) -> float:
        return self._ends if self._ends < math.inf else self.engine.scheduler.next_door()

    def add(self, now: float, request: Request) -> None:
        self.engine.add(request)
        if self._ends == math.inf:
            self._step(now)

    def cancel(self, now: float, request: Request) -> None:
        self.engine.cancel(request.id)

    def advance(self, now: float) -> list[Request]:
        ended: list[Request] = []
        while (moment := self.next) <= now:
            ended += self._made
            self._step(moment)
        return ended

    def _step(self, now: float) -> None:
        self.engine.clock.sleep_until(now)
        batch = self.engine.step()
        self._made = [chunk.request for chunk in batch.chunks if chunk.request.finish is not None]
        self._ends = self.engine.clock.now() if batch.chunks else math.inf
        if batch.chunks:
            self.busy = self.busy + self._ends - now
            self.steps += 1


class _SharedServer:
    """`_level` is how many tokens each request would have that had run since the beginning: a request that joins at one
    level ends `max_tokens` above it, so the order in which requests end never changes."""

    def __init__(self, model: SharedModel, now: float):
        self.model = model
        self.busy = 0.0
        self.steps = 0.0
        self._now = now
        self._level = 0.0
        self._prompt: Request | None = None
        self._prompt_ends = math.inf
        self._running: list[tuple[float, int, Request]] = []
        self._queue: OrderedDict[Request, None] = OrderedDict()
        self._order = count()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def next(self) -> float:
        if self._prompt is not None:
            return self._prompt_ends
        if not self._running:
            return math.inf
        return self._now + max(0.0, self._running[0][0] - self._level) * self._step_seconds

    @property
    def _step_seconds(self) -> float:
        return self.model.step_seconds[len(self._running) - 1]

    def add(self, now: float, request: Request) -> None:
        self._queue[request] = None
        self._admit()

    def cancel(self, now: float, request: Request) -> None:
        if request in self._queue:
            del self._queue[request]
        elif request is self._prompt:
            self._prompt = None
            self._prompt_ends = math.inf
        else:
            self._running = [entry for entry in self._running if entry[2] is not request]
            heapq.heapify(self._running)
        self._admit()

    def advance(self, now: float) -> list[Request]:
        ended: list[Request] = []
        while (moment := self.next) <= now:
            self._pass(moment)
            if self._prompt is not None:
                self._join(self._prompt)
            else:
                self._level, _, request = heapq.heappop(self._running)
                self._token(request, ended)
            self._admit()
        self._pass(now)
        return ended

    def _pass(self, now: float) -> None:
        """Let time go by in which nothing changes."""
        seconds = now - self._now
        self._now = now
        if self._prompt is None and self._running:
            self._level += seconds / self._step_seconds
            self.steps += seconds / self._step_seconds
        if self._prompt is not None or self._running:
            self.busy += seconds

    def _admit(self) -> None:
        if self._prompt is None and self._queue and len(self._running) < self.model.seats:
            self._prompt, _ = self._queue.popitem(last=False)
            self._prompt_ends = self._now + len(self._prompt.prompt) * self.model.prompt_seconds

    def _join(self, request: Request) -> None:
        """The prompt is computed. Its first token comes with the next step, and the one that is being made is half
        over, on average."""
        self._prompt = None
        self._prompt_ends = math.inf
        first = self._level + (1.5 if self._running else 1.0)
        heapq.heappush(self._running, (first, next(self._order), request))

    def _token(self, request: Request, ended: list[Request]) -> None:
        """Record a token. Only the first and the last have times, since those between lie nearly on a straight line."""
        request.token_times.append(self._now)
        if len(request.token_times) == min(2, request.sampling.max_tokens):
            ended.append(request)
        else:
            last = self._level + request.sampling.max_tokens - 1
            heapq.heappush(self._running, (last, next(self._order), request))
