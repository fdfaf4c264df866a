"""The engine beside llama.cpp, ctranslate2 and transformers: the same weights, prompts and number of tokens, and where
a step of ours spends its time.

Weights are random: they change no time, as nothing stops before its number of tokens. Parties take turns. The time is
that of the whole call, with the prompts, as a user waits for it; on one thread it is counted in CPU seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from statistics import median
from typing import Any

import torch
from threeloops.hardware.measure import measure_copy_bandwidth
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.decode import ModelRunner
from threeloops.product.request import Request, Sampling
from threeloops.resident import use_huge_pages
from threeloops_grader.machine.provenance import Provenance
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.engines_peers import LLAMA_CPP, OURS, clock_of, new_engine, peers
from benchmarks.progress import finished
from benchmarks.result import Result, Series, digits

__all__ = ["BATCHES", "MODELS", "measure", "where_a_step_goes"]

MODELS = {
    "2.5 M parameters": GPTConfig(
        320, layers=6, heads=6, kv_heads=2, width=192, mlp_width=512, max_sequence=512, tied_embeddings=False
    ),
    "9.9 M parameters": GPTConfig(
        320, layers=6, heads=6, kv_heads=2, width=384, mlp_width=1056, max_sequence=512, tied_embeddings=False
    ),
}
BATCHES = (1, 8, 32)
_PROMPT = 64
_REST = 0.25
"""Seconds before a party's turn: threads of the party before spin that long, or less, until they sleep."""


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """Measure on the CPU in float32, with one thread and with two."""
    answer, rounds = (32, 2) if quick else (128, 5)
    series: list[Series] = []
    facts: dict[str, Any] = {"where a step of ours goes": {}, "answers equal to ours": {}}
    missing: dict[str, None] = {}
    for size, config in MODELS.items():
        torch.manual_seed(0)
        model = GPT(config).eval().requires_grad_(False)
        for threads in (1, 2):
            for batch in BATCHES:
                what = f"{size}, {batch} at once, {threads} thread{'s' * (threads > 1)}"
                times, alike, lost = _compare(model, threads, batch, answer, rounds)
                unit = "tokens per CPU second" if threads == 1 else "tokens/s"
                peer = LLAMA_CPP if LLAMA_CPP in times else list(times)[-1]
                series += [
                    Series(what, by, unit, rates, "higher", peer=by == peer != OURS) for by, rates in times.items()
                ]
                missing |= dict.fromkeys(lost)
                facts["answers equal to ours"][what] = alike
                facts["where a step of ours goes"][what] = where_a_step_goes(model, threads, batch)
                finished(what + ": " + ", ".join(f"{by} {digits(median(rates))}" for by, rates in times.items()))
    return Result(
        "engines",
        about,
        {
            "quick": quick,
            "prompt": _PROMPT,
            "answer": answer,
            "rounds": rounds,
            "models": {size: config.parameters_count() for size, config in MODELS.items()},
        },
        series,
        {**facts, "not measured": list(missing)},
        notes=[
            f"output tokens per second of the whole call, on one thread per CPU second: prompts of {_PROMPT} tokens, "
            f"{answer} new tokens each, greedy, float32 weights, randomly initialised",
            "llama.cpp keeps keys and values in float16 and the others in float32; its call includes what its server "
            "does for a request",
            "each engine runs in a process of its own, with its memory in huge pages, as in the course's service",
            *missing,
        ],
    )


def _compare(
    model: GPT, threads: int, batch: int, answer: int, rounds: int
) -> tuple[dict[str, tuple[float, ...]], dict[str, str], list[str]]:
    """Tokens per second of each party, how many answers are ours to the last token, and who is missing."""
    prompts = torch.randint(model.config.vocabulary_size, (batch, _PROMPT)).tolist()
    with peers(model, threads, batch) as (parties, missing):
        rates: dict[str, list[float]] = {name: [] for name in parties}
        answers = {name: party.generate(prompts, answer)[0] for name, party in parties.items()}
        for name, given in answers.items():
            assert [len(tokens) for tokens in given] == [answer] * batch, f"{name} gave other numbers of tokens"
        for _ in range(rounds):
            for name, party in parties.items():
                time.sleep(_REST)
                _, seconds = party.generate(prompts, answer)
                rates[name].append(batch * answer / seconds)
    alike = {
        name: f"{sum(mine == theirs for mine, theirs in zip(answers[OURS], given, strict=True))} of {batch}"
        for name, given in answers.items()
        if name != OURS
    }
    return {name: tuple(samples) for name, samples in rates.items()}, alike, missing


def where_a_step_goes(model: GPT, threads: int, batch: int, *, steps: int = 40) -> dict[str, float]:
    """One decoding step of `batch` sequences: its time, the parts of it, and how near it is to the memory's limit."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _parts_of_a_step(model, threads, batch, steps)
    finally:
        torch.set_num_threads(before)


def _parts_of_a_step(model: GPT, threads: int, batch: int, steps: int) -> dict[str, float]:
    engine = new_engine(model, batch)
    runner = engine.executor
    assert isinstance(runner, ModelRunner)
    for number in range(batch):
        engine.add(Request(str(number), tuple(range(_PROMPT)), Sampling(max_tokens=_PROMPT + 2 * steps)))
    for _ in range(_PROMPT):
        engine.step()
    use_huge_pages()
    clock = clock_of(threads)
    executed, computed = _timed(runner, "execute", clock), _timed(runner.cache, "run", clock)
    whole = []
    for _ in range(steps):
        started = clock()
        engine.step()
        whole.append(clock() - started)
    with _Recording() as recording:
        engine.step()
    matrices = _seconds_of_products(recording, steps, clock)
    config, step = model.config, median(whole)
    kept = batch * 2 * _PROMPT * 2 * config.kv_heads * config.head_dim * config.layers
    read = 4 * (config.matmul_parameters + kept)
    return {
        "seconds of a step": step,
        "share of the scheduler": 1 - median(executed) / step,
        "share of preparing and choosing": (median(executed) - median(computed)) / step,
        "share of matrix products": matrices / step,
        "share of the rest of the model": (median(computed) - matrices) / step,
        "operators": len(recording.calls),
        "bytes of weights, keys and values": read,
        "share of the copy bandwidth": read / step / _bandwidth(threads),
    }


@cache
def _bandwidth(threads: int) -> float:
    """Bytes per second of a copy, with PyTorch's current number of threads, which is `threads`."""
    return measure_copy_bandwidth("cpu", buffer_bytes=2**27, runs=3).value


def _timed(owner: Any, name: str, clock: Callable[[], float]) -> list[float]:
    """Replace a method by one that notes its seconds."""
    method, seconds = getattr(owner, name), []

    def timed(*arguments: Any) -> Any:
        started = clock()
        result = method(*arguments)
        seconds.append(clock() - started)
        return result

    setattr(owner, name, timed)
    return seconds


class _Recording(TorchDispatchMode):
    """Records the operators that PyTorch runs, each with its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Callable[[], Any]]] = []

    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        call = partial(operator, *arguments, **(named or {}))
        self.calls.append((operator.name(), call))
        return call()


@torch.inference_mode()
def _seconds_of_products(recording: _Recording, runs: int, clock: Callable[[], float]) -> float:
    """Time a recorded step's products of matrices by themselves."""
    kinds = ("linear", "embedding_bag", "aten::mm", "aten::addmm")
    products = [call for name, call in recording.calls if any(kind in name for kind in kinds)]
    seconds = []
    for _ in range(runs):
        started = clock()
        for product in products:
            product()
        seconds.append(clock() - started)
    return median(seconds)
