"""Virtual time against the engine: the cost of a step is fitted on one trace, and three others are foretold.

The engine runs on one thread and a clock of its CPU seconds, on which waiting for an arrival takes no time. A busy
machine changes such a clock less than the wall's, but it does: steps of one shape spread by a fifth, and a processor is
slower for seconds. Therefore all traces of a round take turns of tens of milliseconds (`taking_turns`), so that what is
fitted and what is foretold see the same processor. The prediction is what many replays in virtual time give on average,
each with its own draws of the steps' spread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import mean, median

import torch
from threeloops.models.gpt import GPT
from threeloops.product.batching import CHUNKED, Engine, FittedCost, Policy, SimulatedExecutor, fit
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.batching.simulated import Cost
from threeloops.product.loadgen import (
    SLO,
    Arrival,
    Metrics,
    Replay,
    bursty,
    conversations,
    lognormal,
    measure,
    mixture,
    on_off,
    poisson,
    replay,
    replaying,
    trace,
    uniform,
)
from threeloops.simulation.clock import Clock, VirtualClock

from benchmarks.progress import finished
from benchmarks.result import Prediction

__all__ = ["REPLAYS", "CpuClock", "NewEngine", "fitted_to", "one_thread", "prediction_rows", "taking_turns"]

POLICY = replace(CHUNKED, max_running=32, token_budget=128)
ENGINE = "threeloops, CPU seconds of one thread"
_CALIBRATION = "calibration"
_TURN = 10
"""Steps that an engine makes in a row, about 50 ms: long beside the few 10 µs that other engines' caches cost it."""
REPLAYS = 20
"""Replays in virtual time for each case and each fitted cost."""


class CpuClock:
    """CPU seconds of this process, and the seconds that were slept through, which pass at once.

    It may be stopped, and started again.
    """

    def __init__(self) -> None:
        self._passed = 0.0
        self._started: float | None = time.process_time()

    def now(self) -> float:
        return self._passed + (0.0 if self._started is None else time.process_time() - self._started)

    def sleep_until(self, moment: float) -> None:
        self._passed += max(0.0, moment - self.now())

    def stop(self) -> None:
        self._passed = self.now()
        self._started = None

    def start(self) -> None:
        self._passed = self.now()
        self._started = time.process_time()


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


NewEngine = Callable[[GPT, Policy, Clock], Engine]


def taking_turns(model: GPT, new_engine: NewEngine, traces: dict[str, list[Arrival]]) -> dict[str, Replay]:
    """Replay all traces on engines of their own, a few steps at a time, the one that computed least so far first.

    A clock passes only while its engine has its turn. It also passes over waiting, so it is not what decides: an engine
    that waits would miss a slow second of the processor that the others must compute in.
    """
    clocks: dict[str, CpuClock] = {}
    computed = dict.fromkeys(traces, 0.0)
    running: dict[str, Iterator[Replay]] = {}
    result: dict[str, Replay] = {}
    for name, arrivals in traces.items():
        clock = CpuClock()
        running[name] = replaying(new_engine(model, POLICY, clock), arrivals)
        result[name] = next(running[name])
        clock.stop()
        clocks[name] = clock
    while running:
        name = min(running, key=computed.__getitem__)
        began = time.process_time()
        clocks[name].start()
        for _ in range(_TURN):
            if next(running[name], None) is None:
                del running[name]
                break
        clocks[name].stop()
        computed[name] += time.process_time() - began
    return result


@one_thread()
def prediction_rows(
    model: GPT, new_engine: NewEngine, requests: int, rounds: int
) -> tuple[list[Prediction], dict[str, object]]:
    """Goodput and latencies of three traces, predicted from a fourth alone; and what was fitted.

    In each round all four take turns, a cost is fitted to the steps of the calibration trace, and the others are
    replayed `REPLAYS` times in virtual time. Predictions and measurements are means over the rounds. The limits of the
    SLO are those that nine in ten requests of the calibration trace meet.
    """
    rate = _capacity(model, new_engine)
    traces = _traces(rate, requests)
    together = {_CALIBRATION: _calibration(rate, requests), **traces}
    measured: list[dict[str, Replay]] = []
    for measured_round in range(rounds):
        measured.append(taking_turns(model, new_engine, together))
        finished(f"predictions, round {measured_round + 1} of {rounds}")
    calibrated = [done[_CALIBRATION] for done in measured]
    seen = [measure(done.requests) for done in calibrated]
    slo = SLO(ttft=median(each.ttft.p90 for each in seen), tpot=median(each.tpot.p90 for each in seen))
    costs = [fitted_to(done) for done in calibrated]
    blocks = new_engine(model, POLICY, CpuClock()).scheduler.blocks
    found = []
    for case, arrivals in traces.items():
        simulations = (_simulated(cost.sampled(seed), blocks) for cost in costs for seed in range(REPLAYS))
        foretold = [measure(replay(simulation, arrivals).requests, slo) for simulation in simulations]
        real = [measure(done[case].requests, slo) for done in measured]
        for what, unit, value in QUANTITIES:
            found.append(Prediction(what, case, ENGINE, unit, mean(map(value, foretold)), mean(map(value, real))))
        finished(f"predictions, {case}")
    return found, {"seconds": [cost.seconds_per for cost in costs], "spread": [_quantiles(cost) for cost in costs]}


def fitted_to(done: Replay) -> FittedCost:
    """The cost of a step, fitted to those of a replay."""
    return fit([step.shape for step in done.steps], [step.seconds for step in done.steps])


QUANTITIES: tuple[tuple[str, str, Callable[[Metrics], float]], ...] = (
    ("goodput", "requests/s", lambda each: each.goodput),
    ("share of requests that meet the SLO", "", lambda each: each.attainment),
    ("throughput", "tokens/s", lambda each: each.throughput),
    ("P50 time to first token", "s", lambda each: each.ttft.p50),
    ("P95 time to first token", "s", lambda each: each.ttft.p95),
    ("P99 time to first token", "s", lambda each: each.ttft.p99),
    ("P50 inter-token latency", "s", lambda each: each.itl.p50),
    ("P99 inter-token latency", "s", lambda each: each.itl.p99),
)

PROMPTS, ANSWERS = lognormal(60, 0.8, 8, 500), mixture((4, uniform(8, 48)), (1, uniform(64, 160)))


def _capacity(model: GPT, new_engine: NewEngine) -> float:
    """Requests per second of this kind, if they never run out."""
    arrivals = trace(poisson(1e9), 64, PROMPTS, ANSWERS, seed=21)
    return 64 / measure(replay(new_engine(model, POLICY, CpuClock()), arrivals).requests).seconds


def _calibration(rate: float, requests: int) -> list[Arrival]:
    """Load between nothing and too much, so that steps of all sizes are seen."""
    return trace(on_off(0.6 * rate, 32 / rate, 24 / rate, 22), requests, PROMPTS, ANSWERS, seed=22)


def _traces(rate: float, requests: int) -> dict[str, list[Arrival]]:
    turns = conversations(
        poisson(0.15 * rate, 25), requests, 4, 64, uniform(10, 60), uniform(16, 64), think=8 / rate, seed=25
    )
    return {
        "Poisson, skewed lengths": trace(poisson(0.6 * rate, 23), requests, PROMPTS, ANSWERS, seed=23),
        "bursts of long prompts": trace(
            bursty(0.5 * rate, 3.0, 24), requests, lognormal(120, 0.5, 16, 600), uniform(16, 64), seed=24
        ),
        "conversations": turns,
    }


def _quantiles(cost: FittedCost) -> dict[str, float]:
    """How long steps take, relative to the fitted mean."""
    assert cost.spread is not None
    return {f"p{percent}": round(cost.spread.quantile(percent / 100), 4) for percent in (1, 10, 50, 90, 99)}


def _simulated(cost: Cost, blocks: BlockManager) -> Engine:
    """An engine in virtual time, with as many blocks as this manager has."""
    clock = VirtualClock()
    return Engine(SimulatedExecutor(clock, cost), BlockManager(blocks.blocks, blocks.block_size), POLICY, clock)
