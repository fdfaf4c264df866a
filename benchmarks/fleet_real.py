"""One recorded trace on real replicas behind NGINX and in virtual time; and once more, while a replica is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import numpy as np
from threeloops.product.fleet import (
    ColdStart,
    EngineModel,
    Failure,
    Fleet,
    FleetRun,
    Probe,
    Probes,
    Retries,
    bursty_day,
    cost_per_million,
    simulate,
)
from threeloops.product.fleet.real import RealFleet
from threeloops.product.loadgen import Arrival, lognormal, uniform

from benchmarks.fleet_replica import BLOCKS, COST, POLICY
from benchmarks.result import Prediction, Series

__all__ = ["PER_HOUR", "real_rows"]

PER_HOUR = 1.0
"""A price of one per replica-hour, so that costs are in replica-hours: whoever has a quotation multiplies by it."""
REPLICAS = 2
PARTY = "real replicas behind NGINX"
PROBES = Probes(
    Probe("/ready", period=0.1, timeout=5, failure_threshold=600),
    Probe("/ready", period=0.5, timeout=2),
    Probe("/health", period=1, timeout=5),
)


@dataclass(frozen=True)
class _Answer:
    arrival: float
    end: float
    status: int
    tokens: int


def real_rows(seconds: float) -> tuple[list[Prediction], list[Series], dict[str, object]]:
    """A trace of so many seconds, twice: undisturbed, and with a replica that is killed in the middle."""
    model = EngineModel(COST, POLICY, BLOCKS)
    demand = bursty_day(4.0, trough=0.6, bursts=2, height=1.6, seconds=seconds, seed=11)
    arrivals = demand.arrivals(lognormal(100, 0.5, 16, 400), uniform(16, 48), seed=12)
    fleet = Fleet(model, REPLICAS, probes=PROBES, retries=Retries(tries=1))
    expected = simulate(arrivals, fleet)
    command = lambda port: [sys.executable, "-m", "benchmarks.fleet_replica", str(port)]  # noqa: E731
    with tempfile.TemporaryDirectory() as folder, RealFleet(command, Path(folder), REPLICAS, probes=PROBES) as running:
        running.wait_for(REPLICAS)
        cold = max(life.ready - life.asked for life in running.lives)
        answers, _ = _play(running, arrivals)
        predictions = _compared("undisturbed", expected, answers)
        at = seconds / 2
        killed, recovery = _play(running, arrivals, kill_at=at)
        again = simulate(arrivals, replace(fleet, failures=(Failure(at),), cold_start=ColdStart(load=cold)))
        predictions += _compared("a replica killed", again, killed)
    errors = sum(answer.status != 200 for answer in killed)
    series = [
        Series("seconds from the kill until both replicas serve again", PARTY, "s", (recovery,)),
        Series("requests without an answer or an error, a replica killed", PARTY, "",
               (float(sum(answer.status == 0 for answer in killed)),)),
        Series("requests answered with an error, a replica killed", PARTY, "", (float(errors),)),
        Series("requests answered with an error, a replica killed", "in virtual time", "",
               (float(sum(again.errors.values())),)),
    ]  # fmt: skip
    facts = {
        "requests of the trace": len(arrivals),
        "seconds until a replica is ready": cold,
        "latencies, undisturbed": [round(each.end - each.arrival, 4) for each in answers],
    }
    return predictions, series, facts


def _compared(case: str, expected: FleetRun, answers: Sequence[_Answer]) -> list[Prediction]:
    served = [each for each in answers if each.status == 200]
    ends = max(each.end for each in answers)
    times = [each.end - each.arrival for each in served]
    foretold = [each.seconds for each in expected.answered]
    tokens = sum(each.tokens for each in served)
    found = [
        Prediction(
            f"P{share} from arrival to last token",
            case,
            PARTY,
            "s",
            float(np.percentile(foretold, share)),
            float(np.percentile(times, share)),
        )
        for share in (50, 95)
    ]
    per_million = (
        cost_per_million(REPLICAS * expected.seconds, expected.output_tokens, PER_HOUR),
        cost_per_million(REPLICAS * ends, tokens, PER_HOUR),
    )
    return [*found, Prediction("replica-hours per million output tokens", case, PARTY, "", *per_million)]


def _play(fleet: RealFleet, arrivals: Sequence[Arrival], kill_at: float | None = None) -> tuple[list[_Answer], float]:
    """Answers in the order of arrival, and seconds from the kill until all replicas serve again."""
    return asyncio.run(_played(fleet, arrivals, kill_at))


async def _played(fleet: RealFleet, arrivals: Sequence[Arrival], kill_at: float | None) -> tuple[list[_Answer], float]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=fleet.url, timeout=120, limits=limits) as client:
        await client.get("/ready")
        began = time.monotonic()
        asked = [asyncio.create_task(_ask(client, each, began)) for each in arrivals]
        recovery = await _kill(fleet, began + kill_at) if kill_at is not None else 0.0
        return list(await asyncio.gather(*asked)), recovery


async def _ask(client: httpx.AsyncClient, arrival: Arrival, began: float) -> _Answer:
    """Open loop: its time counts from the moment at which it should have been sent."""
    await asyncio.sleep(max(0.0, began + arrival.at - time.monotonic()))
    body = {"prompt_tokens": arrival.prompt_length, "max_tokens": arrival.max_tokens}
    try:
        answer = await client.post("/v1/completions", json=body)
    except httpx.HTTPError:
        return _Answer(arrival.at, time.monotonic() - began, 0, 0)
    tokens = answer.json()["usage"]["completion_tokens"] if answer.status_code == 200 else 0
    return _Answer(arrival.at, time.monotonic() - began, answer.status_code, tokens)


async def _kill(fleet: RealFleet, moment: float) -> float:
    await asyncio.sleep(max(0.0, moment - time.monotonic()))
    victim = fleet.containers[0]
    pid, killed = victim.pid, time.monotonic()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while victim.pid in (None, pid) or not victim.ready or victim.port not in fleet.serving:
        await asyncio.sleep(0.02)
    return time.monotonic() - killed
