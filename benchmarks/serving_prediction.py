"""Virtual time against the engine: the cost of a step is fitted on one trace, and three others are foretold.

The engine runs on one thread and a clock of its CPU seconds, on which waiting for an arrival takes no time. A busy
machine changes such a clock little, and the wall's a lot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median

import torch
from threeloops.models.gpt import GPT
from threeloops.product.batching import CHUNKED, Engine, FittedCost, Policy, SimulatedExecutor, fit
from threeloops.product.batching.blocks import BlockManager
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
    trace,
    uniform,
)
from threeloops.simulation.clock import Clock, VirtualClock

from benchmarks.progress import finished
from benchmarks.result import Prediction

__all__ = ["CpuClock", "NewEngine", "one_thread", "prediction_rows"]

POLICY = replace(CHUNKED, max_running=32, token_budget=128)
ENGINE = "threeloops, CPU seconds of one thread"


class CpuClock:
    """CPU seconds of this process, and the seconds that were slept through, which pass at once."""

    def __init__(self) -> None:
        self._slept = 0.0

    def now(self) -> float:
        return time.process_time() + self._slept

    def sleep_until(self, moment: float) -> None:
        self._slept += max(0.0, moment - self.now())


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


NewEngine = Callable[[GPT, Policy, Clock], Engine]


@one_thread()
def prediction_rows(
    model: GPT, new_engine: NewEngine, requests: int, rounds: int = 3
) -> tuple[list[Prediction], dict[str, float]]:
    """Goodput and latencies of three traces, predicted from a fourth alone; and the seconds that were fitted.

    The calibration trace is replayed before each of the others, in every round, because a processor's speed drifts over
    minutes. Its limits of an SLO are those that nine in ten of its own requests meet.
    """
    rate = _capacity(model, new_engine)
    calibration, traces = _calibration(rate, requests), _traces(rate, requests)
    calibrated: list[Replay] = []
    measured: dict[str, list[Replay]] = {case: [] for case in traces}
    for measured_round in range(rounds):
        for case, arrivals in traces.items():
            calibrated.append(replay(new_engine(model, POLICY, CpuClock()), calibration))
            measured[case].append(replay(new_engine(model, POLICY, CpuClock()), arrivals))
            finished(f"predictions, round {measured_round + 1} of {rounds}: {case}")
    steps = [step for each in calibrated for step in each.steps]
    cost = fit([step.shape for step in steps], [step.seconds for step in steps])
    seen = [measure(each.requests) for each in calibrated]
    slo = SLO(ttft=median(each.ttft.p90 for each in seen), tpot=median(each.tpot.p90 for each in seen))
    found = []
    for case, arrivals in traces.items():
        predicted = measure(replay(_simulated(new_engine(model, POLICY, CpuClock()), cost), arrivals).requests, slo)
        real = [measure(each.requests, slo) for each in measured[case]]
        for what, unit, value in QUANTITIES:
            found.append(Prediction(what, case, ENGINE, unit, value(predicted), median(map(value, real))))
    return found, cost.seconds_per


QUANTITIES: tuple[tuple[str, str, Callable[[Metrics], float]], ...] = (
    ("goodput", "requests/s", lambda each: each.goodput),
    ("share of requests that meet the SLO", "", lambda each: each.attainment),
    ("throughput", "tokens/s", lambda each: each.throughput),
    ("P50 time to first token", "s", lambda each: each.ttft.p50),
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


def _simulated(engine: Engine, cost: FittedCost) -> Engine:
    clock = VirtualClock()
    blocks = engine.scheduler.blocks
    return Engine(SimulatedExecutor(clock, cost), BlockManager(blocks.blocks, blocks.block_size), POLICY, clock)
