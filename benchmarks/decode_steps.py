"""A step of decoding by each cache, and speculative decoding beside the formula of its paper.

`step_times` takes one step of the same sequences with no cache, with a contiguous one and with a paged one, in turns.
`speculation` decodes the same prompts with and without a draft. The acceptance that the formula needs is counted in the
same run, and so is the draft's cost, by letting it decode by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from threeloops.models.gpt import GPT
from threeloops.product.batching.engine import Engine
from threeloops.product.batching.scheduler import Policy
from threeloops.product.decode import (
    BlockManager,
    ContiguousCache,
    LookupDraft,
    ModelDraft,
    ModelRunner,
    PagedCache,
    Rows,
    SpeculativeRunner,
    expected_speedup,
    expected_tokens,
)
from threeloops.product.request import Request, Sampling

from benchmarks.result import Prediction, Series
from benchmarks.turns import in_turns

__all__ = ["speculation", "step_times"]

_BLOCK = 16
_CONTIGUOUS, _PAGED, _UNCACHED = "contiguous cache", "paged cache", "no cache"
_PLAIN = "without a draft"

Tokens = Sequence[Sequence[int]]


@torch.inference_mode()
def step_times(model: GPT, sequences: Tokens, device: str, *, rounds: int) -> list[Series]:
    """Seconds for one more token of each sequence; the contiguous cache is the peer."""
    weight, config = model.head.weight, model.config
    longest, count = max(map(len, sequences)), len(sequences)
    lengths = torch.tensor([len(tokens) for tokens in sequences], device=weight.device)
    padded = torch.tensor([[*tokens, *[0] * (longest - len(tokens))] for tokens in sequences], device=weight.device)
    last = padded.gather(1, lengths[:, None] - 1)
    contiguous = ContiguousCache(config, count, longest, dtype=weight.dtype, device=weight.device)
    contiguous.hidden(model, padded, torch.zeros_like(lengths))
    blocks = BlockManager(sum(-(-len(tokens) // _BLOCK) for tokens in sequences), _BLOCK)
    paged = PagedCache(config, blocks.blocks, _BLOCK, dtype=weight.dtype, device=weight.device)
    tables: list[list[int]] = [[] for _ in sequences]
    for place in range(0, longest, _BLOCK):  # grown in turns, so that no sequence's blocks lie side by side
        for table, tokens in zip(tables, sequences, strict=True):
            blocks.grow(table, min(len(tokens), place + _BLOCK))
    paged.hidden(model, [Rows(tokens, 0, table) for tokens, table in zip(sequences, tables, strict=True)])
    new = [Rows(tokens[-1:], len(tokens) - 1, table) for tokens, table in zip(sequences, tables, strict=True)]
    parties = {
        _PAGED: lambda: model.head(paged.hidden(model, new)),
        _CONTIGUOUS: lambda: model.head(contiguous.hidden(model, last, lengths - 1)),
        _UNCACHED: lambda: model.head(model.hidden(padded)),
    }
    what = f"one step of {count} sequences of {min(map(len, sequences))} to {longest} tokens"
    times = in_turns(parties, device, rounds)
    return [Series(what, by, "s", samples, peer=by == _CONTIGUOUS) for by, samples in times.items()]


def speculation(
    model: GPT,
    drafts: dict[str, GPT | None],
    prompts: Tokens,
    sampling: Sampling,
    device: str,
    *,
    guesses: int,
    rounds: int,
) -> tuple[list[Series], list[Prediction], dict[str, Any]]:
    """Seconds to decode all prompts; tokens per step and speed-up beside the formulas; acceptance of each draft.

    A draft is a model, whose cost is that of decoding the same prompts by itself, or None to look guesses up, for
    nothing. The formula takes it that the model computes guesses in no time, as where memory is the limit.
    """
    blocks = sum(-(-(len(prompt) + sampling.max_tokens) // _BLOCK) for prompt in prompts)
    runners = {
        name: SpeculativeRunner(model, LookupDraft() if draft is None else ModelDraft(draft), blocks, _BLOCK)
        for name, draft in drafts.items()
    }
    alone = {f"{name}, by itself": ModelRunner(draft, blocks, _BLOCK) for name, draft in drafts.items() if draft}
    steps: dict[str, int] = {}

    def decode(name: str, runner: ModelRunner | SpeculativeRunner) -> None:
        policy = Policy(guesses=guesses if name in drafts else 0, prefix_cache=False, token_budget=10**6)
        engine = Engine(runner, BlockManager(blocks, _BLOCK), policy)
        for place, prompt in enumerate(prompts):
            engine.add(Request(str(place), tuple(prompt), sampling))
        steps[name] = 0
        while engine.requests:
            engine.step()
            steps[name] += 1

    every = {_PLAIN: ModelRunner(model, blocks, _BLOCK), **runners, **alone}
    times = in_turns({name: partial(decode, name, runner) for name, runner in every.items()}, device, rounds)
    what = f"{len(prompts)} × {sampling.max_tokens} tokens at temperature {sampling.temperature:g}"
    series = [Series(what, name, "s", samples, peer=name == _PLAIN) for name, samples in times.items()]
    predictions, facts = [], {}
    for name, runner in runners.items():
        cost = median(times.get(f"{name}, by itself", (0.0,))) / median(times[_PLAIN])
        tokens, speedup = (
            expected_tokens(runner.acceptance, guesses),
            expected_speedup(runner.acceptance, guesses, cost),
        )
        took = (sampling.max_tokens - 1) / (steps[name] - 1), median(times[_PLAIN]) / median(times[name])
        predictions.append(Prediction("tokens per step", name, "engine", "tokens", tokens, took[0]))
        predictions.append(Prediction("speed-up", name, "engine", "×", speedup, took[1]))
        facts[name] = {"acceptance": runner.acceptance, "judged": runner.judged, "cost": cost}
    return series, predictions, facts
