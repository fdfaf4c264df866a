"""Ways to scale a fleet over a bursty day, in virtual time: what users notice, and what it costs (claims svc-2 to -4).

Llama 3 8B in bf16 on H100s that reach 70% of their data sheet, 2 ms of CPU per step on 4 cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from threeloops.hardware import accelerator
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import RooflineCost
from threeloops.product.fleet import (
    Autoscaler,
    ColdStart,
    Cost,
    Fleet,
    FleetRun,
    Price,
    Probe,
    Probes,
    ScalingRules,
    bursty_day,
    cost_of,
    shared_model,
    simulate,
)
from threeloops.product.loadgen import SLO, lognormal

from benchmarks.result import Series

__all__ = ["CPU", "LIVENESS_ALONE", "QUEUE", "policy_rows", "scaled_fleets"]

LLAMA_8B = GPTConfig(128_256, 32, 32, 8, 4096, 14_336, 8192, tied_embeddings=False)
SEATS, PROMPT, OUTPUT = 16, 1000, 600
COST = RooflineCost(LLAMA_8B, accelerator("H100"), reached=0.7, overhead=2e-3)
MODEL = shared_model(COST, SEATS, PROMPT, OUTPUT)
COLD = ColdStart(pull=40, load=90, warm_up=20, spread=0.2)
CAREFUL = Probes(Probe("/ready", failure_threshold=60), Probe("/ready", period=5), Probe("/health"))
LIVENESS = Probes(readiness=Probe("/health"), liveness=Probe("/health", initial_delay=30))
SLOW = SLO(ttft=1.0)
PRICE = Price(1.0, source="a replica-hour: multiply by a quotation", date="2026-11-25", currency="replica-hours")
QUEUE = "requests outstanding, Kubernetes' windows"
CPU, LIVENESS_ALONE = "CPU at 70% (svc-2)", "liveness alone, one /health (svc-4)"
AT_ONCE = ScalingRules(0)


def scaled_fleets() -> dict[str, Fleet]:
    """Return fleets by the autoscaler's metric and its patience."""
    scaled = Autoscaler(target=8, minimum=1, maximum=10)
    base = Fleet(MODEL, 2, scaled, cold_start=COLD, probes=CAREFUL, timeout=120)
    return {
        QUEUE: base,
        "requests outstanding, at once in both directions": replace(base, autoscaler=replace(scaled, down=AT_ONCE)),
        "requests outstanding, half the target": replace(base, autoscaler=replace(scaled, target=4)),
        "requests outstanding, replicas that start at once": replace(base, cold_start=ColdStart()),
        "requests waiting": replace(base, metric="waiting", autoscaler=replace(scaled, target=2)),
        CPU: replace(base, metric="cpu", autoscaler=replace(scaled, target=0.7)),
        "device busy at 70%": replace(base, metric="busy", autoscaler=replace(scaled, target=0.7)),
        LIVENESS_ALONE: replace(base, probes=LIVENESS, cold_start=replace(COLD, answers_health=False)),
        "a fixed number for the peak": replace(base, autoscaler=None, replicas=7),
        "a fixed number for the mean": replace(base, autoscaler=None, replicas=3),
    }


def policy_rows(seconds: float, fleets: Mapping[str, Fleet] | None = None) -> list[Series]:
    """One day, compressed to so many seconds. The cold start is not, so a shorter day is a harder one."""
    day = bursty_day(5.5 * MODEL.requests_per_second(PROMPT, OUTPUT), bursts=3, seconds=seconds, seed=3)
    arrivals = day.arrivals(lognormal(900, 0.4, 50, 4000), lognormal(550, 0.4, 20, 2400), seed=4)
    runs = {name: simulate(arrivals, fleet, seed=5) for name, fleet in (fleets or scaled_fleets()).items()}
    costs = {name: cost_of(run, PRICE, SLOW) for name, run in runs.items()}
    values: dict[tuple[str, str], Callable[[FleetRun, Cost], float]] = {
        ("share of requests whose first token comes within 1 s", "higher"): lambda run, cost: cost.attainment,
        ("P99 time to first token, s", "lower"): lambda run, cost: run.ttft.p99,
        ("replica-hours per million output tokens", "lower"): lambda run, cost: cost.per_million,
        ("replica-hours per million output tokens within the SLO", "lower"): lambda run, cost: min(
            cost.per_million_within_slo, 1e9
        ),
        ("turns from scaling up to down, or back", "lower"): lambda run, cost: float(run.reversals),
        ("restarts of replicas", "lower"): lambda run, cost: float(sum(life.restarts for life in run.lives)),
    }
    return [
        Series(f"{what}, in virtual time", name, "", (value(runs[name], costs[name]),), better, peer=False)
        for (what, better), value in values.items()
        for name in runs
    ]
