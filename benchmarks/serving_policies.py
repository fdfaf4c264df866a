"""One seeded trace under four policies (claim cb-1): in virtual time on an H100, and in CPU seconds here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from threeloops.hardware import accelerator
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import POLICIES, Engine, Policy, RooflineCost, SimulatedExecutor
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.loadgen import (
    SLO,
    Arrival,
    Metrics,
    lognormal,
    measure,
    mixture,
    poisson,
    replay,
    trace,
    uniform,
)
from threeloops.simulation.clock import VirtualClock

from benchmarks.progress import finished
from benchmarks.result import Series
from benchmarks.serving_prediction import CpuClock, NewEngine, one_thread

__all__ = ["policy_rows", "virtual_engine"]

LLAMA_8B = GPTConfig(128_256, 32, 32, 8, 4096, 14_336, 8192, tied_embeddings=False)
"""The sizes of Llama 3 8B."""

ONE = "one at a time"
PROMPTS, ANSWERS = lognormal(200, 0.8, 16, 700), mixture((9, uniform(16, 64)), (1, uniform(150, 300)))


def policies(max_running: int) -> dict[str, Policy]:
    """The four, and no batching at all, with equally many seats and no prefix cache, as the prompts share nothing."""
    same = {"max_running": max_running, "token_budget": 512, "prefix_cache": False}
    found = {name: replace(policy, **same) for name, policy in POLICIES.items()}
    return {ONE: replace(found["continuous"], max_running=1), **found}


def virtual_engine(policy: Policy) -> Engine:
    """Llama 3 8B in bf16 on an H100 that reaches 70% of its data sheet, with 2 ms of overhead per step."""
    clock = VirtualClock()
    cost = RooflineCost(LLAMA_8B, accelerator("H100"), reached=0.7, overhead=2e-3)
    return Engine(SimulatedExecutor(clock, cost), BlockManager(16_384, 16), policy, clock)


@one_thread()
def policy_rows(model: GPT, new_engine: NewEngine, requests: int, rounds: int) -> list[Series]:
    """Throughput where all is asked for at once, and latencies and goodput at parts of that rate."""
    here: dict[str, Callable[[Policy], Engine]] = {
        "H100, virtual": virtual_engine,
        "this CPU": lambda policy: new_engine(model, policy, CpuClock()),
    }
    found: dict[tuple[str, str, str], list[float]] = {}
    for where, engine_of in here.items():
        at_once = trace(poisson(1e9), requests, PROMPTS, ANSWERS, seed=11)
        capacity = requests / measure(replay(engine_of(policies(16)["chunked"]), at_once).requests).seconds
        alone = replay(engine_of(policies(1)["chunked"]), trace(poisson(1e-3), 1, PROMPTS, ANSWERS, seed=12))
        gap = measure(alone.requests).itl.p50 if where == "this CPU" else 0.01
        slo = SLO(ttft=100 * gap, tpot=5 * gap)
        loads = {
            f"{load:.0%} of capacity": trace(poisson(load * capacity, 13), requests, PROMPTS, ANSWERS, seed=14)
            for load in (0.2, 0.7)
        }
        rounds_here = 1 if where.endswith("virtual") else rounds
        for measured_round in range(rounds_here):
            for name, policy in policies(16).items():
                burst = _metrics(engine_of(policy), at_once, slo)
                _note(found, f"throughput, all at once, {where}", "tokens/s", name, burst.throughput)
                for load, arrivals in loads.items():
                    steady = _metrics(engine_of(policy), arrivals, slo)
                    _note(found, f"throughput at {load}, {where}", "tokens/s", name, steady.throughput)
                    _note(found, f"goodput at {load}, {where}", "requests/s", name, steady.goodput)
                    _note(found, f"P99 time to first token at {load}, {where}", "s", name, steady.ttft.p99)
                    _note(found, f"P99 inter-token latency at {load}, {where}", "s", name, steady.itl.p99)
                finished(f"policies, {where}, round {measured_round + 1} of {rounds_here}: {name}")
    return [
        Series(what, name, unit, tuple(samples), "lower" if unit == "s" else "higher", peer=name == ONE)
        for (what, unit, name), samples in sorted(found.items(), key=lambda each: each[0][0])  # parties stay in order
    ]


def _note(found: dict[tuple[str, str, str], list[float]], what: str, unit: str, name: str, value: float) -> None:
    found.setdefault((what, unit, name), []).append(value)


def _metrics(engine: Engine, arrivals: list[Arrival], slo: SLO) -> Metrics:
    return measure(replay(engine, arrivals).requests, slo)
