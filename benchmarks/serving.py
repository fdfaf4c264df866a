"""The engine beside transformers on the same weights, and beside its own prediction: throughput, latency, waste.

Weights are random: they change no time, as nothing stops before its `max_tokens`. Parties take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from random import Random

import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import CHUNKED, CONTINUOUS, Engine, Policy
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.decode.runner import ModelRunner
from threeloops.product.loadgen import Metrics, lognormal, mixture, poisson, replay, trace, uniform
from threeloops.product.loadgen import measure as measured
from threeloops.product.request import Request, Sampling
from threeloops.simulation.clock import Clock
from threeloops_grader.machine.provenance import Provenance

from benchmarks.progress import finished
from benchmarks.result import Result, Series
from benchmarks.serving_policies import policy_rows
from benchmarks.serving_prediction import REPLAYS, CpuClock, one_thread, prediction_rows
from benchmarks.serving_transformers import Transformers, no_transformers
from benchmarks.serving_waste import waste_rows

__all__ = ["CONFIG", "measure", "new_engine"]

CONFIG = GPTConfig(256, layers=6, heads=6, kv_heads=2, width=192, mlp_width=512, max_sequence=1024)
BLOCK, BLOCKS = 16, 2048
OURS, UNCHUNKED, UNCACHED = "threeloops", "threeloops, whole prompts", "threeloops, no prefix cache"
UNIFORM, SKEWED = "throughput, uniform lengths", "throughput, skewed lengths"
LIMITS = (64, 512), (128, 512), (128, 1024)
"""Seats and tokens of a step that are tried."""
Lengths = list[tuple[tuple[int, ...], int]]


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """Measure on the CPU in float32. `quick` takes fewer requests and rounds."""
    requests, rounds = (32, 1) if quick else (128, 5)
    model = new_model()
    tuned: dict[str, str] = {}
    parts = {
        UNIFORM: lambda: _throughput(UNIFORM, model, _batch(requests, lambda random: (64, 64)), rounds, tuned),
        SKEWED: lambda: _throughput(SKEWED, model, _batch(requests, _skewed), rounds, tuned),
        "chunked prefill": lambda: _chunking(model, requests, rounds),
        "prefix cache": lambda: _prefixes(model, requests // 4, rounds),
        "waste": waste_rows,
        "policies": lambda: policy_rows(model, new_engine, 40 if quick else 160, rounds),
    }
    series = []
    for what, part in parts.items():
        series += part()
        finished(what)
    rounds = 1 if quick else 5
    predictions, fitted = prediction_rows(model, new_engine, 60 if quick else 200, rounds)
    missing = no_transformers()
    return Result(
        "serving",
        about,
        {
            "quick": quick,
            "requests": requests,
            "parameters": CONFIG.parameters_count(),
            "block": BLOCK,
            "blocks": BLOCKS,
            "threads": torch.get_num_threads(),
            "chosen by trying": tuned,
        },
        series,
        {"fitted": fitted, "not measured": [missing] if missing else []},
        predictions,
        [
            "latencies, policies and predictions here are in CPU seconds of one thread, which a busy machine changes "
            "less than wall time",
            "throughput: output tokens that were asked for, of requests that all come at once; a static batch computes "
            "its longest answer for everybody, and only what was asked for counts",
            "each party ran with the settings that were fastest in a trial of this very load",
            "predictions: the cost of a step and its spread are fitted on one trace, while it takes turns with the "
            f"others; those are then computed in virtual time, {REPLAYS} times for each of the rounds ({rounds}), and "
            "compared by means",
            *([f"transformers: {missing}"] if missing else []),
        ],
    )


def new_model() -> GPT:
    torch.manual_seed(0)
    return GPT(CONFIG).eval().requires_grad_(False)


def new_engine(model: GPT, policy: Policy = CHUNKED, clock: Clock | None = None) -> Engine:
    return Engine(ModelRunner(model, BLOCKS, BLOCK), BlockManager(BLOCKS, BLOCK), policy, clock)


def _skewed(random: Random) -> tuple[int, int]:
    """Nine of ten answers are short."""
    prompts, answers = lognormal(48, 0.9, 8, 400), mixture((9, uniform(8, 40)), (1, uniform(200, 320)))
    return prompts(random), answers(random)


def _batch(requests: int, lengths: Callable[[Random], tuple[int, int]]) -> Lengths:
    random = Random(1)
    drawn = [lengths(random) for _ in range(requests)]
    return [(tuple(random.choices(range(256), k=prompt)), answer) for prompt, answer in drawn]


def _throughput(what: str, model: GPT, batch: Lengths, rounds: int, tuned: dict[str, str]) -> list[Series]:
    """Measure throughput in wall time with all threads, and in CPU seconds with one."""
    tokens = sum(answer for _, answer in batch)
    policy = _tuned(model, batch)
    tuned[f"{what}: {OURS}"] = f"{policy.max_running} in a batch, {policy.token_budget} tokens in a step"
    parties: dict[str, Callable[[], object]] = {OURS: lambda: _run(model, batch, policy)}
    if no_transformers() is None:
        for name, settings, run in Transformers(model).tuned(batch):
            parties[name], tuned[f"{what}: {name}"] = run, settings
    wall, cpu = (f"{what}, all threads", "tokens/s"), (f"{what}, one thread", "tokens per CPU second")
    found: dict[tuple[str, str], dict[str, list[float]]] = {
        each: {name: [] for name in parties} for each in (wall, cpu)
    }
    for measured_round in range(-1, rounds):
        for name, run in parties.items():
            times = {wall: _seconds(time.perf_counter, run)}
            with one_thread():
                times[cpu] = _seconds(time.process_time, run)
            if measured_round >= 0:
                for each, seconds in times.items():
                    found[each][name].append(tokens / seconds)
                finished(f"{what}, round {measured_round + 1} of {rounds}: {name}, {tokens / times[wall]:.0f} tokens/s")
    peer = list(parties)[-1]
    return [
        Series(quantity, name, unit, tuple(samples), "higher", peer=name == peer != OURS)
        for (quantity, unit), party in found.items()
        for name, samples in party.items()
    ]


def _tuned(model: GPT, batch: Lengths) -> Policy:
    """The fastest of a few limits for this very load, as for each of transformers' modes."""
    policies = [replace(CHUNKED, max_running=seats, token_budget=tokens) for seats, tokens in LIMITS]
    return min(policies, key=lambda policy: _seconds(time.perf_counter, lambda: _run(model, batch, policy)))


def _seconds(clock: Callable[[], float], run: Callable[[], object]) -> float:
    started = clock()
    run()
    return clock() - started


def _run(model: GPT, batch: Lengths, policy: Policy = CHUNKED) -> list[Request]:
    requests = [Request(str(n), prompt, Sampling(max_tokens=answer)) for n, (prompt, answer) in enumerate(batch)]
    new_engine(model, policy).run(requests)
    return requests


@one_thread()
def _chunking(model: GPT, requests: int, rounds: int) -> list[Series]:
    """Many short chats, and now and then a prompt of hundreds of tokens."""
    prompts, answers = mixture((3, uniform(8, 40)), (1, uniform(500, 900))), uniform(24, 64)
    chunked = replace(CHUNKED, token_budget=96, max_running=32, prefix_cache=False)
    whole = replace(CONTINUOUS, token_budget=1024, max_running=32, prefix_cache=False)
    arrivals = trace(poisson(0.7 * _rate(model, whole, prompts, answers), 5), requests, prompts, answers, seed=6)
    found: dict[str, list[Metrics]] = {OURS: [], UNCHUNKED: []}
    for _ in range(rounds):
        for name, policy in ((OURS, chunked), (UNCHUNKED, whole)):
            done = replay(new_engine(model, policy, CpuClock()), arrivals)
            found[name].append(measured(done.requests))
    kinds: dict[str, Callable[[Metrics], float]] = {
        "P99 inter-token latency, long prompts among chats": lambda each: each.itl.p99,
        "P99 time to first token, long prompts among chats": lambda each: each.ttft.p99,
    }
    return [
        Series(what, name, "s", tuple(map(value, samples)), peer=name == UNCHUNKED)
        for what, value in kinds.items()
        for name, samples in found.items()
    ]


def _rate(model: GPT, policy: Policy, prompts, answers) -> float:
    """Requests per second that the engine can do at most, of this kind."""
    random = Random(9)
    batch = _batch(32, lambda _: (prompts(random), answers(random)))
    started = time.process_time()
    _run(model, batch, policy)
    return len(batch) / (time.process_time() - started)


@one_thread()
def _prefixes(model: GPT, requests: int, rounds: int) -> list[Series]:
    """One after another, with a system prompt of 800 tokens that all share, and 16 of their own."""
    found: dict[str, list[float]] = {OURS: [], UNCACHED: []}
    random = Random(2)
    shared = tuple(random.choices(range(256), k=800))
    for _ in range(rounds):
        for name, policy in ((OURS, CHUNKED), (UNCACHED, replace(CHUNKED, prefix_cache=False))):
            engine = new_engine(model, replace(policy, token_budget=1024), CpuClock())
            engine.run([Request("first", (*shared, 1), Sampling(max_tokens=1))])
            for number in range(requests):
                prompt = (*shared, *random.choices(range(256), k=16))
                request = Request(str(number), prompt, Sampling(max_tokens=1), arrival=engine.clock.now())
                engine.run([request])
                found[name].append(request.token_times[0] - request.arrival)
    what = "time to first token, 800 of 816 tokens shared"
    return [Series(what, name, "s", tuple(samples), peer=name == UNCACHED) for name, samples in found.items()]
