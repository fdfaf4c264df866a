"""The engine of the course as one prefill side and one decode side, against its simulation and against one engine.

Both sides run in one thread, and each has a clock of its own CPU seconds. A side that waits for the other moves its
clock to the moment of the message, so the two run at the same time however busy this machine is. The messages take
`α + bytes / β` on the way, as measured between two threads over a Unix socket.
"""

from __future__ import annotations

import asyncio
import heapq
import queue
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import median

from threeloops.models.gpt import GPT
from threeloops.product.batching import Engine, FittedCost, fit
from threeloops.product.decode import ModelRunner
from threeloops.product.disaggregated.real import BlockLink, DecodeRole, DisaggregatedService, PrefillRole
from threeloops.product.disaggregated.real.messages import Blocks, Ended, FromRole, Progress
from threeloops.product.loadgen import Arrival, Metrics, lognormal, measure, poisson, replay, trace, uniform
from threeloops.product.loadgen.trace import requests_of
from threeloops.product.request import Finish, Request, Sampling
from threeloops.product.service.engine import EngineClient, EngineSpec
from threeloops.product.service.engine.messages import Submit
from threeloops.simulation.clock import Clock
from threeloops.training.collectives.cost import Link

from benchmarks.result import Prediction
from benchmarks.serving_prediction import POLICY, CpuClock, NewEngine, one_thread

__all__ = ["DisaggregatedReplay", "link_of_a_socket", "process_rows", "real_rows", "replay_two_sides"]

SIDES = "1 prefill and 1 decode, CPU seconds of one thread each"
QUANTITIES: tuple[tuple[str, str, Callable[[Metrics], float]], ...] = (
    ("throughput", "tokens/s", lambda metrics: metrics.throughput),
    ("P50 time to first token", "s", lambda metrics: metrics.ttft.p50),
    ("P90 time to first token", "s", lambda metrics: metrics.ttft.p90),
    ("P50 time per output token", "s", lambda metrics: metrics.tpot.p50),
    ("P90 time per output token", "s", lambda metrics: metrics.tpot.p90),
    ("P50 end to end", "s", lambda metrics: metrics.end_to_end.p50),
)


class TurnClock:
    """Seconds that stand still between two turns of a side, and are its thread's CPU seconds in a turn."""

    def __init__(self) -> None:
        self._at = 0.0
        self._began: float | None = None

    def now(self) -> float:
        return self._at if self._began is None else self._at + time.process_time() - self._began

    def sleep_until(self, moment: float) -> None:
        assert self._began is None, "nobody sleeps in a turn"
        self._at = max(self._at, moment)

    def begin(self) -> None:
        self._began = time.process_time()

    def end(self) -> None:
        self._at = self.now()
        self._began = None


@dataclass
class _Side:
    """A role, its clock, and the calls that reach it at a moment."""

    role: PrefillRole | DecodeRole
    clock: TurnClock
    coming: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    is_busy: bool = False

    @property
    def next(self) -> float:
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
class DisaggregatedReplay:
    """The requests of a trace as their reader saw them, and the bytes of keys and values that were sent."""

    requests: list[Request]
    sent_bytes: int = 0


def replay_two_sides(
    arrivals: Sequence[Arrival], new_side: Callable[[Clock], Engine], link: Link, handover: str
) -> DisaggregatedReplay:
    """Replay a trace on two engines that `new_side` makes, until every request has ended."""
    result = DisaggregatedReplay(requests_of(arrivals, 256))
    order = count()
    sides: dict[str, _Side] = {}
    free_at = 0.0

    def tell(side: str, message: FromRole) -> None:
        assert isinstance(message, Progress | Ended)
        request = result.requests[message.number]
        if isinstance(message, Ended):
            request.finish = Finish(message.outcome)
            return
        new = message.tokens[len(request.output) - message.start :]
        request.output += new
        request.token_times += [sides[side].clock.now()] * len(new)

    def to_decode(message, blocks) -> None:
        nonlocal free_at
        free_at = max(free_at, sides["prefill"].clock.now()) + len(blocks) / link.bandwidth
        result.sent_bytes += len(blocks)
        data = bytearray(blocks)
        role = sides["decode"].role
        arrival = free_at + link.latency
        heapq.heappush(sides["decode"].coming, (arrival, next(order), lambda: role.hear(message, data)))

    def to_prefill(message, blocks) -> None:
        role = sides["prefill"].role
        arrival = sides["decode"].clock.now() + link.latency
        heapq.heappush(sides["prefill"].coming, (arrival, next(order), lambda: role.hear(message)))

    for name in ("prefill", "decode"):
        clock = TurnClock()
        engine = new_side(clock)
        runner = engine.executor
        assert isinstance(runner, ModelRunner)
        if name == "prefill":
            room = engine.scheduler.blocks.blocks * engine.scheduler.blocks.block_size
            role = PrefillRole(
                engine, runner.cache, lambda message: tell("prefill", message), room=room, handover=handover
            )
        else:
            role = DecodeRole(engine, runner.cache, lambda message: tell("decode", message), window=1 << 30)
        sides[name] = _Side(role, clock)
    sides["prefill"].role.connected(to_decode)
    sides["decode"].role.connected(to_prefill)
    prefill = sides["prefill"]
    for number, request in enumerate(result.requests):
        submitted = Submit(number, request.prompt, request.sampling, request.priority)
        arrival = (request.arrival, next(order), partial(prefill.role.submit, submitted))
        heapq.heappush(prefill.coming, arrival)
    while (side := min(sides.values(), key=lambda side: side.next)).next < float("inf"):
        side.turn()
    return result


def link_of_a_socket(rounds: int = 200) -> Link:
    """Return latency and bandwidth of a `BlockLink` on this machine, from the fastest of many messages."""
    seconds = {size: _fastest(size, rounds) for size in (16, 1 << 21)}
    slope = (seconds[1 << 21] - seconds[16]) / (1 << 21)
    return Link(seconds[16], 1 / slope)


def _fastest(size: int, rounds: int) -> float:
    ours, theirs = socket.socketpair()
    arrived: queue.SimpleQueue[float] = queue.SimpleQueue()
    sender = BlockLink(ours, Blocks, 0)
    receiver = BlockLink(theirs, Blocks, size)
    sender.start(lambda *_: None, lambda _: None)
    receiver.start(lambda *_: arrived.put(time.perf_counter()), lambda _: None)
    data = bytes(size)
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        sender.send(Blocks(0, 0, 1, 0, 1), data)
        best = min(best, arrived.get(timeout=60) - began)
    sender.close()
    return best


@one_thread()
def real_rows(
    model: GPT, new_engine: NewEngine, requests: int, rounds: int = 3, handover: str = "layers"
) -> tuple[list[Prediction], dict[str, float]]:
    """Times of two traces on one prefill side and one decode side, predicted from the steps of a single engine.

    The single engine replays a third trace before each of the others, in every round, because a processor's speed
    drifts over minutes. The second result has facts: the link, and sent bytes over those of the closed form.
    """
    rate = _capacity(model, new_engine)
    calibration = trace(poisson(0.7 * rate, 31), requests, PROMPTS, ANSWERS, seed=31)
    traces = _traces(rate, requests)
    link = link_of_a_socket()
    steps = []
    seen: dict[str, list[DisaggregatedReplay]] = {case: [] for case in traces}
    for _ in range(rounds):
        for case, arrivals in traces.items():
            steps += replay(new_engine(model, POLICY, CpuClock()), calibration).steps
            seen[case].append(
                replay_two_sides(arrivals, lambda clock: new_engine(model, POLICY, clock), link, handover)
            )
    cost = fit([step.shape for step in steps], [step.seconds for step in steps])
    rows = []
    block_size = new_engine(model, POLICY, CpuClock()).scheduler.blocks.block_size
    closed_form = sent = 0
    for case, arrivals in traces.items():
        predicted = measure(_simulated(model, new_engine, cost, link, handover, arrivals))
        real = [measure(each.requests) for each in seen[case]]
        for what, unit, value in QUANTITIES:
            rows.append(Prediction(what, case, SIDES, unit, value(predicted), median(map(value, real))))
        config = model.config
        of_block = block_size * config.layers * 2 * config.kv_heads * config.head_dim * model.head.weight.itemsize
        closed_form += sum(-(-arrival.prompt_length // block_size) * of_block for arrival in arrivals)
        sent += seen[case][0].sent_bytes
    facts = {"latency, s": link.latency, "bandwidth, bytes/s": link.bandwidth, "sent / closed form": sent / closed_form}
    return rows, facts


PROMPTS, ANSWERS = lognormal(100, 0.7, 16, 400), uniform(8, 48)


def _capacity(model: GPT, new_engine: NewEngine) -> float:
    """Requests per second of a single engine, if they never run out."""
    arrivals = trace(poisson(1e9), 48, PROMPTS, ANSWERS, seed=30)
    return 48 / measure(replay(new_engine(model, POLICY, CpuClock()), arrivals).requests).seconds


def _traces(rate: float, requests: int) -> dict[str, list[Arrival]]:
    """Traces of unrelated prompts, so no block is sent twice or saved by a prefix cache."""
    return {
        "Poisson": trace(poisson(0.8 * rate, 32), requests, PROMPTS, ANSWERS, seed=32),
        "long prompts, short answers": trace(
            poisson(0.6 * rate, 33), requests, lognormal(200, 0.5, 32, 440), uniform(4, 24), seed=33
        ),
    }


def _simulated(
    model: GPT, new_engine: NewEngine, cost: FittedCost, link: Link, handover: str, arrivals: Sequence[Arrival]
) -> list[Request]:
    from threeloops.product.disaggregated.description import Deployment, Pool
    from threeloops.product.disaggregated.simulation import simulate
    from threeloops.product.disaggregated.transfer import CacheShape, Handover

    blocks = new_engine(model, POLICY, CpuClock()).scheduler.blocks
    shape = CacheShape.of(model.config, model.head.weight.itemsize)
    pool = Pool(1, POLICY, blocks.blocks)
    return simulate(
        arrivals, Deployment(cost, Handover(link, shape, handover), pool, pool, block_size=blocks.block_size)
    ).requests


def process_rows(spec: EngineSpec, requests: int = 40, handover: str = "layers") -> dict[str, list[float]]:
    """Seconds by the clock on the wall of requests one after another, to the first token and per token after it: of
    real processes, one engine ("together") and two ("apart")."""
    return asyncio.run(_process_rows(spec, requests, handover))


async def _process_rows(spec: EngineSpec, requests: int, handover: str) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {}
    together = await EngineClient.start(spec)
    try:
        await together.wait_ready()
        async with DisaggregatedService(spec, spec, handover=handover) as apart:
            arrivals = trace(poisson(1.0, 34), requests, uniform(64, 128), uniform(32, 33), seed=34)
            for request in requests_of(arrivals, 256):
                for name, service in (("together", together), ("apart", apart)):
                    times = [time.perf_counter()]
                    copy = Request(request.id, request.prompt, Sampling(max_tokens=request.sampling.max_tokens))
                    async with aclosing(service.generate(copy)) as tokens:
                        async for _ in tokens:
                            times.append(time.perf_counter())
                    samples.setdefault(f"{name}: time to first token", []).append(times[1] - times[0])
                    per_token = (times[-1] - times[1]) / (len(times) - 2)
                    samples.setdefault(f"{name}: time per output token", []).append(per_token)
    finally:
        await together.close()
    return samples
