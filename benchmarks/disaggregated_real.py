"""The engine of the course as one prefill side and one decode side, against its simulation and against one engine.

Both sides run in one thread, and each has a clock of its own CPU seconds. A side that waits for the other moves its
clock to the moment of the message, so the two run at the same time however busy this machine is. The messages take
`α + bytes / β` on the way, as measured between two threads over a Unix socket.
"""

from __future__ import annotations

import asyncio
import queue
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from statistics import median

from threeloops.models.gpt import GPT
from threeloops.product.batching import Engine, FittedCost, StepShape, fit
from threeloops.product.decode import ModelRunner, PagedCache
from threeloops.product.disaggregated.real import (
    BlockLink,
    DisaggregatedService,
    TurnClock,
    replay_two_sides,
)
from threeloops.product.disaggregated.real.messages import Blocks
from threeloops.product.loadgen import Arrival, Metrics, lognormal, measure, on_off, poisson, replay, trace, uniform
from threeloops.product.loadgen.trace import requests_of
from threeloops.product.request import Request, Sampling
from threeloops.product.service.engine import EngineClient, EngineSpec
from threeloops.simulation.clock import Clock
from threeloops.training.collectives.cost import Link

from benchmarks.progress import finished
from benchmarks.result import Prediction
from benchmarks.serving_prediction import POLICY, CpuClock, NewEngine, one_thread

__all__ = ["link_of_a_socket", "process_rows", "real_rows", "steps_side_by_side"]

SIDES = "1 prefill and 1 decode, CPU seconds of one thread each"
QUANTITIES: tuple[tuple[str, str, Callable[[Metrics], float]], ...] = (
    ("throughput", "tokens/s", lambda metrics: metrics.throughput),
    ("P50 time to first token", "s", lambda metrics: metrics.ttft.p50),
    ("P90 time to first token", "s", lambda metrics: metrics.ttft.p90),
    ("mean time per output token", "s", lambda metrics: metrics.tpot.mean),
    ("P50 time per output token", "s", lambda metrics: metrics.tpot.p50),
    ("P90 time per output token", "s", lambda metrics: metrics.tpot.p90),
    ("P50 end to end", "s", lambda metrics: metrics.end_to_end.p50),
)


def steps_side_by_side(
    new_engine: Callable[[Clock], Engine], traces: Sequence[Sequence[Arrival]]
) -> list[tuple[StepShape, float]]:
    """Replay each trace on an engine of its own. The engine whose clock is behind makes the next step."""
    steps = []
    clocks = [TurnClock() for _ in traces]
    engines = [new_engine(clock) for clock in clocks]
    coming = [sorted(requests_of(arrivals, 256), key=lambda request: -request.arrival) for arrivals in traces]
    while left := [place for place, engine in enumerate(engines) if coming[place] or engine.requests]:
        place = min(left, key=lambda place: clocks[place].now())
        clock = clocks[place]
        began = clock.now()
        clock.begin()
        while coming[place] and coming[place][-1].arrival <= began:
            engines[place].add(coming[place].pop())
        batch = engines[place].step()
        clock.end()
        if batch.chunks:
            steps.append((StepShape.of(batch), clock.now() - began))
        elif coming[place]:
            clock.sleep_until(coming[place][-1].arrival)
    return steps


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

    Two single engines replay other traces before and after each of these, because a processor's speed drifts over
    minutes. They take turns, as the two sides do, and so each finds as little of its weights in the processor's caches.
    The second result has facts: the link, and sent bytes over those of the closed form.
    """
    rate = _capacity(model, new_engine)
    calibration = [
        trace(on_off(0.6 * rate, 32 / rate, 24 / rate, seed), requests // 2, PROMPTS, ANSWERS, seed=seed)
        for seed in (31, 35)
    ]
    traces = _traces(rate, requests)
    link = link_of_a_socket()

    def new_side(clock: Clock) -> tuple[Engine, PagedCache]:
        engine = new_engine(model, POLICY, clock)
        assert isinstance(engine.executor, ModelRunner)
        return engine, engine.executor.cache

    def calibrated() -> list[tuple[StepShape, float]]:
        return steps_side_by_side(lambda clock: new_engine(model, POLICY, clock), calibration)

    block_size = new_engine(model, POLICY, CpuClock()).scheduler.blocks.block_size
    predicted: dict[str, list[Metrics]] = {case: [] for case in traces}
    measured: dict[str, list[Metrics]] = {case: [] for case in traces}
    sent = 0
    for _ in range(rounds):
        steps = calibrated()
        for case, arrivals in traces.items():
            real = replay_two_sides(arrivals, new_side, link, handover)
            later = calibrated()
            cost = fit(*zip(*steps, *later, strict=True))
            steps = later
            measured[case].append(measure(real.requests))
            predicted[case].append(measure(_simulated(model, new_engine, cost, link, handover, arrivals)))
            sent += real.sent_bytes
            finished(f"one prefill and one decode side: {case}")
    rows = [
        Prediction(what, case, SIDES, unit, median(map(value, predicted[case])), median(map(value, measured[case])))
        for case in traces
        for what, unit, value in QUANTITIES
    ]
    config = model.config
    of_block = block_size * config.layers * 2 * config.kv_heads * config.head_dim * model.head.weight.itemsize
    blocks = sum(-(-arrival.prompt_length // block_size) for arrivals in traces.values() for arrival in arrivals)
    closed_form = rounds * blocks * of_block
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
