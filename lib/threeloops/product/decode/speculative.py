"""Speculative decoding: a draft guesses some tokens, and the model checks them all in one step.

Sources: Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers via Speculative Decoding"; Chen et al.
2023, "Accelerating Large Language Model Decoding with Speculative Sampling".

A decoding step reads every weight to compute one token per sequence, and computing a few tokens takes about as long. So
a draft proposes a few, and the model computes them as if they were a prompt. A guess drawn from q is kept with
probability min(1, p / q). The first guess that is not kept is replaced by a draw from the excess of p over q. The
result has the model's own distribution p, whatever the draft. A bad draft costs time and changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.decode.flat import flattened
from threeloops.product.decode.paged import PagedCache, Rows
from threeloops.product.decode.runner import ModelRunner
from threeloops.product.decode.sampling import choose, draw, probabilities, uniforms
from threeloops.product.request import Batch, Chunk, Request

__all__ = [
    "DRAFT_NOISE", "Draft", "Guess", "LookupDraft", "ModelDraft", "SpeculativeRunner", "accept", "expected_speedup",
    "expected_tokens", "judge",
]  # fmt: skip

_MODEL = 0
_ACCEPT = 2
DRAFT_NOISE = 1
"""The stream of noise that a draft draws with. Whether a guess is kept, and what is drawn instead, must not depend on
how it was drawn, so these have streams of their own."""


def accept(guesses: Sequence[int], draft: Tensor, model: Tensor, noise: Tensor) -> tuple[int, Tensor]:
    """Return how many of the first `guesses` are kept, and the distribution of the token after them, (vocabulary,).

    Guess i was drawn from `draft[i]`, (guesses, vocabulary), and the model would have drawn it from `model[i]`,
    (guesses + 1, vocabulary). `noise` is a uniform number from 0 to 1 for each guess. (Leviathan et al., algorithm 1.)
    """
    for place, guess in enumerate(guesses):
        if noise[place] * draft[place, guess] >= model[place, guess]:
            excess = (model[place] - draft[place]).clamp(min=0)
            # It is all zeros only where p = q but for rounding, and then a draw from p is a draw from either.
            return place, excess if excess.any() else model[place]
    return len(guesses), model[len(guesses)]


def expected_tokens(acceptance: float, guesses: int) -> float:
    """Tokens per step if each guess is accepted with probability `acceptance`: 1 + a + … + a^guesses (equation 1)."""
    return sum(acceptance**accepted for accepted in range(guesses + 1))


def expected_speedup(acceptance: float, guesses: int, draft_cost: float) -> float:
    """Return the speed-up over decoding without a draft, if the model's step takes no longer with guesses and a step of
    the draft takes `draft_cost` of it (theorem 3.8).
    """
    return expected_tokens(acceptance, guesses) / (guesses * draft_cost + 1)


@dataclass(frozen=True)
class Guess:
    """Tokens that a draft proposes for one chunk, and the distribution of each, (tokens, vocabulary), or None if each
    was certain."""

    tokens: list[int]
    chances: Tensor | None = None


class Draft(Protocol):
    """A draft, which proposes tokens."""

    def join(self, config: GPTConfig, blocks: int, block_size: int) -> None:
        """Prepare to guess for a model with a cache of this many blocks. Raises ValueError if the two do not fit."""
        ...

    def propose(self, batch: Batch, stream: int) -> list[Guess]:
        """Return at most `chunk.guesses` tokens for each chunk, drawn with the noise of `stream`. The engine calls this
        for every step, including those without guesses.
        """
        ...


class LookupDraft:
    """Propose the tokens that followed the last occurrence of the request's last few tokens, if there is one. This is
    free, and works well if the output repeats the prompt (Saxena 2023, "Prompt Lookup Decoding").

    Longer matches, up to `longest` tokens, come first.
    """

    def __init__(self, longest: int = 3):
        if longest < 1:
            raise ValueError(f"longest = {longest}: expected at least 1 token to look up")
        self._longest = longest

    def join(self, config: GPTConfig, blocks: int, block_size: int) -> None:
        pass  # tokens are all that it looks at

    def propose(self, batch: Batch, stream: int) -> list[Guess]:
        return [Guess(self._followed(chunk.request.tokens, chunk.guesses)) for chunk in batch.chunks]

    def _followed(self, tokens: Sequence[int], count: int) -> list[int]:
        for length in range(min(self._longest, len(tokens) - 1), 0, -1) if count else ():
            last = tokens[-length:]
            for start in range(len(tokens) - length - 1, -1, -1):
                if tokens[start : start + length] == last:
                    return list(tokens[start + length : start + length + count])
        return []


class ModelDraft:
    """A smaller model with a cache of its own and the block tables of the large one.

    When all guesses of a step are kept, the draft has not computed the last of them, so it computes the token before a
    chunk again. That needs no state: a preempted request, or one that found its prefix in the cache, is treated alike.
    """

    def __init__(self, model: GPT):
        self._model = flattened(model)

    def join(self, config: GPTConfig, blocks: int, block_size: int) -> None:
        own = self._model.config
        weight = self._model.head.weight
        if own.vocabulary_size != config.vocabulary_size:
            raise ValueError(
                f"the draft has vocabulary_size = {own.vocabulary_size}, the model {config.vocabulary_size}: expected "
                "one vocabulary; train the draft with the tokenizer of the model"
            )
        if own.max_sequence < config.max_sequence:
            raise ValueError(
                f"the draft has max_sequence = {own.max_sequence}, the model {config.max_sequence}: expected at least "
                "as many positions; give the draft a longer table of rotations"
            )
        self._cache = PagedCache(own, blocks, block_size, dtype=weight.dtype, device=weight.device)

    def propose(self, batch: Batch, stream: int) -> list[Guess]:
        self._cache.copy(batch.copies)
        rows = [self._synchronised(chunk) for chunk in batch.chunks]
        wanted = [chunk.guesses for chunk in batch.chunks]
        tokens: list[list[int]] = [[] for _ in batch.chunks]
        chances: list[list[Tensor]] = [[] for _ in batch.chunks]
        places = list(range(len(batch.chunks)))  # of the chunks that `rows` belong to
        while True:
            hidden = self._cache.hidden(self._model, rows)
            ends = torch.tensor([len(part.tokens) for part in rows], device=hidden.device).cumsum(0) - 1
            going = [row for row, place in enumerate(places) if len(tokens[place]) < wanted[place]]
            if not going:
                break
            places = [places[row] for row in going]
            requests = [batch.chunks[place].request for place in places]
            positions = [request.length + len(tokens[place]) for place, request in zip(places, requests, strict=True)]
            # A draft that breaks down guesses badly, and that is all: its guesses are judged like any other.
            logits = self._model.head(hidden[ends[going]]).nan_to_num()
            distributions = probabilities(logits, [request.sampling for request in requests])
            drawn = draw(
                distributions, [request.sampling.seed for request in requests], positions, stream=stream
            ).tolist()
            rows = []
            for place, request, position, token, row in zip(
                places, requests, positions, drawn, distributions, strict=True
            ):
                tokens[place].append(token)
                chances[place].append(row)
                if len(tokens[place]) < wanted[place]:
                    rows.append(Rows([token], position, request.block_table))
            places = [place for place in places if len(tokens[place]) < wanted[place]]
            if not rows:
                break
        return [Guess(own, torch.stack(rows) if rows else None) for own, rows in zip(tokens, chances, strict=True)]

    def _synchronised(self, chunk: Chunk) -> Rows:
        request = chunk.request
        start = max(0, chunk.request.computed - 1)
        tokens = request.tokens_from(start, request.computed + chunk.count - start)
        return Rows(tokens, start, request.block_table)


class SpeculativeRunner:
    """Executes an engine's steps as `ModelRunner` does, with guesses wherever the scheduler left room for them
    (`Policy.guesses`).

    At temperature 0 the tokens are those without a draft. Above it they have the same distribution. But the other
    requests determine how many guesses there is room for, so the tokens that a seed gives depend on the other requests
    too. With `invariant=True` a seed gives the same tokens as without a draft: draft and model draw with the same
    noise, and a guess is kept if both drew it, which happens less often (Daliri, Musco and Suresh 2024, "Coupling
    without Communication and Drafter-Invariant Speculative Decoding").
    """

    def __init__(self, model: GPT, draft: Draft, blocks: int, block_size: int, *, invariant: bool = False):
        self._runner = ModelRunner(model, blocks, block_size)
        self._draft = draft
        self._invariant = invariant
        self._draft.join(model.config, blocks, block_size)
        self.judged = 0  # guesses that were compared with the model: none after the first that is not kept
        self.kept = 0

    @property
    def acceptance(self) -> float:
        """The share of the judged guesses that was kept."""
        return self.kept / max(1, self.judged)

    def check(self, request: Request) -> None:
        """Raises ValueError for a request that the model cannot compute, or whose logits would have to be adjusted
        after guesses that may not be kept."""
        sampling = request.sampling
        if sampling.is_adjusted or sampling.logprobs is not None or sampling.prompt_logprobs is not None:
            raise ValueError(
                f"request {request.id!r}: speculative decoding has no penalties, biases, grammars or logprobs; leave "
                "them out, or use ModelRunner"
            )
        self._runner.check(request)

    @torch.inference_mode()
    def execute(self, batch: Batch) -> list[Sequence[int] | Exception]:
        """Return for each chunk its new tokens, or the error that ends its request.

        A chunk that does not sample has no new tokens.
        """
        self._runner.cache.copy(batch.copies)
        guesses = self._draft.propose(batch, _MODEL if self._invariant else DRAFT_NOISE)
        logits, finite = self._runner.logits(batch.chunks, [guess.tokens for guess in guesses])
        exact = self._drawn_alone(batch.chunks, guesses, logits)
        results: list[Sequence[int] | Exception] = []
        first = 0
        for chunk, guess, is_finite in zip(batch.chunks, guesses, finite, strict=True):
            end = first + (len(guess.tokens) + 1 if chunk.samples else 0)
            if not is_finite:
                results.append(self._without(chunk, guess))
            elif not chunk.samples:
                results.append(())
            else:
                tokens = exact[first:end]
                new = (
                    _agreed(guess.tokens, tokens)
                    if self._is_exact(chunk.request)
                    else judge(chunk.request, guess, logits[first:end])
                )
                self.kept += len(new) - 1
                self.judged += min(len(new), len(guess.tokens))
                results.append(new)
            first = end
        return results

    def _without(self, chunk: Chunk, guess: Guess) -> Sequence[int] | Exception:
        """Return the chunk again without its guesses, if it has any, because they may have caused the numbers that are
        not finite."""
        if not guess.tokens:
            return self._runner.error(chunk)
        end = chunk.request.computed + chunk.count
        self._runner.cache.forget(chunk.request.block_table, end, end + len(guess.tokens))
        return self._runner.execute(Batch((chunk,)))[0]

    def _drawn_alone(self, chunks: Sequence[Chunk], guesses: Sequence[Guess], logits: Tensor) -> list[int]:
        """Return the tokens that the model itself draws from each row of `logits`, if some request keeps only guesses
        that agree."""
        rows = [
            (chunk.request, place)
            for chunk, guess in zip(chunks, guesses, strict=True)
            for place in range(len(guess.tokens) + 1)
            if chunk.samples
        ]
        if not any(self._is_exact(request) for request, _ in rows):
            return []
        samplings = [request.sampling for request, _ in rows]
        return choose(logits, samplings, [request.length + place for request, place in rows]).tolist()

    def _is_exact(self, request: Request) -> bool:
        """Whether a guess is kept only if it is the token that the model draws."""
        return self._invariant or request.sampling.temperature == 0


def _agreed(guesses: Sequence[int], drawn: Sequence[int]) -> list[int]:
    """The drawn tokens up to the first that was not guessed."""
    accepted = 0
    while accepted < len(guesses) and guesses[accepted] == drawn[accepted]:
        accepted += 1
    return list(drawn[: accepted + 1])


def judge(request: Request, guess: Guess, logits: Tensor) -> list[int]:
    """Return the accepted guesses and one token more, by `accept`. The rows of `logits`, (guesses + 1, vocabulary), are
    the model's for each guess and the token after them."""
    count = len(guess.tokens)
    seed = request.sampling.seed
    model = probabilities(logits, [request.sampling] * (count + 1))
    draft = guess.chances
    if draft is None:
        draft = functional.one_hot(torch.tensor(guess.tokens, dtype=torch.long, device=model.device), model.shape[-1])
    positions = range(request.length, request.length + count)
    noise = uniforms([seed] * count, positions, stream=_ACCEPT, device=model.device)
    accepted, chances = accept(guess.tokens, draft, model, noise)
    return [*guess.tokens[:accepted], *draw(chances[None], [seed], [request.length + accepted], stream=_MODEL).tolist()]
