"""The service under twice the load that it can take, beside the sample server of claim svc-1; and what it costs over
the bare engine, beside what uvicorn and FastAPI cost alone.

Weights are random: they change no time, as nothing stops before its `max_tokens`. Each server is a process, its engine
computes with one thread, and the client shares the machine's cores with them.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from threeloops.models.gpt import GPT
from threeloops.models.llama_folder import save_llama_folder
from threeloops.product.request import Request, Sampling
from threeloops_grader.machine.provenance import Provenance

from benchmarks.result import Result, Series, Unmeasured
from benchmarks.service_load import Call, Load, Server, at_once, call, closed_loop, open_loop, serving
from benchmarks.serving import CONFIG, new_engine, new_model
from benchmarks.serving_prediction import one_thread

__all__ = ["measure"]

OURS, SAMPLE = "threeloops serve", "the sample server (svc-1)"
BARE, FLOOR = "the bare engine", "uvicorn and FastAPI alone"
THROUGHPUT = ("throughput of many at once", "tokens/s", "higher", BARE)
ENGINE_CPU = ("CPU of the engine per 1,000 tokens", "s", "lower", BARE)
FRONT_CPU = ("CPU of the front per 1,000 tokens", "s", "lower", FLOOR)
FIRST = ("first token of one alone", "s", "lower", BARE)
"""The quantity, its unit, the better direction, and the peer that ours is compared with."""
RUNNING, QUEUED = 16, 8
LOAD = Load(prompt=48, answer=32)
TTFT_LIMIT, TPOT_LIMIT = 2.0, 0.2
"""Seconds: the objective of accepted requests."""
REFUSAL_LIMIT = 0.05


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """Measure on the CPU in float32. `quick` overloads for five seconds instead of sixty, in fewer rounds."""
    seconds, rounds, requests = (5.0, 2, 16) if quick else (60.0, 5, 64)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        save_llama_folder(new_model(), folder)
        overload, facts = _overloaded(folder, seconds)
        series = [*overload, *_overhead(folder, rounds, requests, singles=10 if quick else 60)]
    return Result(
        "service",
        about,
        {
            "quick": quick,
            "parameters": CONFIG.parameters_count(),
            "max_running": RUNNING,
            "max_queued": QUEUED,
            "prompt": LOAD.prompt,
            "answer": LOAD.answer,
            "seconds of overload": seconds,
            "objective": {
                "time to first token": TTFT_LIMIT,
                "time per output token": TPOT_LIMIT,
                "P95 of refusals": REFUSAL_LIMIT,
            },
        },
        series,
        facts,
        notes=[
            f"overload: Poisson arrivals at twice the rate that {OURS} answers with all places taken; latencies count "
            "from the intended arrival",
            f"{SAMPLE} gets the same arrivals; it refuses nobody, and whoever has no answer after 120 s has none",
            "overhead: all parties compute with one thread, in turns; client, front and engine share this machine's "
            "cores, so where it has few or is busy, CPU seconds say more than the wall's",
        ],
    )


def _ours(folder: Path, **more: object) -> Any:
    given = {"model": folder, "max_running": RUNNING, "max_queued": QUEUED, "threads": 1, "blocks": 2048, **more}
    names = {f"THREELOOPS_SERVE_{name.upper()}": str(value) for name, value in given.items()}
    return serving(["threeloops.product.service", "--port", "{port}"], **names, THREELOOPS_SERVE_LOG_FILE="/dev/null")


def _overloaded(folder: Path, seconds: float) -> tuple[list[Series], dict[str, Any]]:
    with _ours(folder) as server:
        rate = 2 * _capacity(server, seconds / 5)
        server.memory.clear()
        ours = asyncio.run(open_loop(server, LOAD, rate, seconds))
        alive, memory = server.process.poll() is None, server.memory
    with serving(["benchmarks.service_sample", "{port}", str(folder)]) as server:
        sample = asyncio.run(open_loop(server, Load(LOAD.prompt, LOAD.answer, stream=False), rate, seconds))
        average = float(np.mean([each.latency for each in sample if each.status == 200] or [np.nan]))
        sample_memory = server.memory
    accepted, refused = [c for c in ours if c.status == 200], [c for c in ours if c.status in (429, 503)]
    if not accepted or not refused:
        raise Unmeasured(f"{len(accepted)} requests were answered and {len(refused)} refused: no overload")
    told = [each.latency for each in refused]
    done = [each for each in sample if each.status == 200]
    series = [
        Series("time of a refusal at twice the capacity", OURS, "s", tuple(told)),
        Series("P95 time of a refusal", OURS, "s", (_p95(told),)),
        Series("time to first token of the accepted", OURS, "s", tuple(each.ttft for each in accepted)),
        Series("P95 time to the whole answer", OURS, "s", (_p95([each.latency for each in accepted]),)),
        Series("P95 time to the whole answer", SAMPLE, "s", (_p95([each.latency for each in done]),), peer=True),
        Series("answers per second", OURS, "1/s", (_rate(accepted),), "higher"),
        Series("answers per second", SAMPLE, "1/s", (_rate(done),), "higher", peer=True),
        Series("resident memory, second by second", OURS, "bytes", tuple(map(float, memory))),
        Series("resident memory, second by second", SAMPLE, "bytes", tuple(map(float, sample_memory)), peer=True),
    ]
    kept = sum(each.ttft <= TTFT_LIMIT and each.tpot <= TPOT_LIMIT for each in accepted)
    third = max(1, len(memory) // 3)
    facts = {
        "arrivals per second": rate,
        "sent": len(ours),
        "answered": len(accepted),
        "refused": len(refused),
        "neither": len(ours) - len(accepted) - len(refused),
        "still alive": alive,
        "share of the accepted within the objective": kept / len(accepted),
        "growth of memory, first to last third": median(memory[-third:]) / median(memory[:third]) - 1,
        "sample: answered within 120 s": len(done) / len(sample),
        "sample: the average that it reports, s": average,
    }
    return series, facts


def _capacity(server: Server, seconds: float) -> float:
    """Requests per second with all places taken all the time, after a warm-up."""
    asyncio.run(at_once(server, LOAD, RUNNING))
    calls = asyncio.run(closed_loop(server, LOAD, RUNNING, seconds))
    _all_answered(calls)
    return _rate(calls)


def _overhead(folder: Path, rounds: int, requests: int, singles: int) -> list[Series]:
    """Measure the overhead of one request alone, and of many at once with answers so long that their starts count
    little."""
    load, single = Load(LOAD.prompt, 192), Load(LOAD.prompt, 2)
    found: dict[tuple[str, str, str, str], dict[str, list[float]]] = {
        quantity: defaultdict(list) for quantity in (THROUGHPUT, ENGINE_CPU, FRONT_CPU, FIRST)
    }
    model, thousands = new_model(), requests * load.answer / 1000
    floor = serving(["benchmarks.service_sample", "{port}", "floor"])
    with _ours(folder, max_running=64, max_queued=requests) as ours, floor as alone, one_thread():
        for turn in range(rounds + 1):  # the first warms up
            used = time.process_time()
            bare, _ = _bare(model, load, requests, 1000 * turn)
            used = time.process_time() - used
            seconds, front, engine = _at_once(ours, load, requests, 1000 * turn)
            floors_seconds, floors_front, _ = _at_once(alone, load, requests, 1000 * turn)
            if turn:
                for name, each in ((BARE, bare), (OURS, seconds), (FLOOR, floors_seconds)):
                    found[THROUGHPUT][name].append(1000 * thousands / each)
                for name, each in ((BARE, used), (OURS, engine)):
                    found[ENGINE_CPU][name].append(each / thousands)
                for name, each in ((OURS, front), (FLOOR, floors_front)):
                    found[FRONT_CPU][name].append(each / thousands)
        for number in range(singles + 1):
            bare = _bare(model, single, 1, 10**6 + number)[1]
            first = {BARE: bare, OURS: _alone(ours, single, number), FLOOR: _alone(alone, single, number)}
            if number:
                for name, each in first.items():
                    found[FIRST][name].append(each)
    return [
        Series(what, name, unit, tuple(samples), better, peer=name == peer)  # type: ignore[arg-type]
        for (what, unit, better, peer), parties in found.items()
        for name, samples in parties.items()
    ]


def _bare(model: GPT, load: Load, requests: int, start: int) -> tuple[float, float]:
    """Seconds for all of them on an engine in this process, with nothing around it, and to the first token."""
    engine = new_engine(model)
    began = engine.clock.now()
    asked = [
        Request(str(number), tuple(load.text(start + number).encode()), Sampling(max_tokens=load.answer), began)
        for number in range(requests)
    ]
    engine.run(asked)
    return engine.clock.now() - began, min(each.token_times[0] for each in asked) - began


def _at_once(server: Server, load: Load, requests: int, start: int) -> tuple[float, float, float]:
    """Seconds for all of them, and CPU seconds of the server's front and of its engine."""
    before = server.cpu_seconds()
    seconds, calls = asyncio.run(at_once(server, load, requests, first=start))
    _all_answered(calls)
    front, engine = (after - each for after, each in zip(server.cpu_seconds(), before, strict=True))
    return seconds, front, engine


def _alone(server: Server, load: Load, number: int) -> float:
    found = asyncio.run(call(server, load.body(10**6 + number)))
    _all_answered([found])
    return found.ttft


def _all_answered(calls: list[Call]) -> None:
    if wrong := [each.status for each in calls if each.status != 200]:
        raise Unmeasured(f"{len(wrong)} of {len(calls)} requests were not answered, the first with status {wrong[0]}")


def _rate(calls: list[Call]) -> float:
    return len(calls) / (max(each.end for each in calls) - min(each.at for each in calls)) if calls else 0.0


def _p95(samples: list[float]) -> float:
    return float(np.percentile(samples, 95)) if samples else float("inf")
