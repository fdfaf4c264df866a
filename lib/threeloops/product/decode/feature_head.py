"""Guesses from the model's own features: one extra layer reads what the model's head reads.

Sources: Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty" (arXiv:2401.15077); the
multi-token prediction of DeepSeek-AI 2024, "DeepSeek-V3" (arXiv:2412.19437), section 2.2.

A separate draft starts from tokens and must understand the text by itself. The model has just done so: its features,
which its head reads, say much about the tokens to come. So the extra layer gets the features at a position and the
embedding of the token that was drawn there, and makes the features of the next position. The model's own head turns
these into a distribution. To guess further, the layer reads its own features.
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from threeloops.models.gpt import GPT, Block, KeyValueCache, RMSNorm
from threeloops.models.gpt_config import GPTConfig
from threeloops.models.gpt_operations import Rotation
from threeloops.product.decode.contiguous import ContiguousCache
from threeloops.product.decode.sampling import choose, draw, probabilities
from threeloops.product.decode.speculative import DRAFT_NOISE, Guess, judge
from threeloops.product.request import Request, Sampling

__all__ = ["FeatureHead", "Speculated", "speculate"]


class FeatureHead(nn.Module):
    """The extra layer: two norms, a projection of both inputs to the width of the model, a block and a norm."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.feature_norm = RMSNorm(config)
        self.embedding_norm = RMSNorm(config)
        self.join = nn.Linear(2 * config.width, config.width, bias=False)
        self.block = Block(config)
        self.norm = RMSNorm(config)
        for weight in self.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=0.02)
        with torch.no_grad():  # it begins with the mean of its two inputs
            self.join.weight += torch.eye(config.width).repeat(1, 2) / 2

    def forward(
        self,
        features: Float[Tensor, "batch tokens width"],
        embedded: Float[Tensor, "batch tokens width"],
        rotation: Rotation,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        """Return features of the next positions. `features[:, i]` belong to position i, and `embedded[:, i]` is the
        embedding of the token after it."""
        both = torch.cat((self.feature_norm(features), self.embedding_norm(embedded)), -1)
        return self.norm(self.block(self.join(both), rotation, cache))

    def chances(self, model: GPT, tokens: Tensor, depth: int = 1) -> Tensor:
        """Return the distribution of the token at each position from `depth` + 1 on, (batch, tokens − depth,
        vocabulary), if the model has read all tokens but the last `depth` before it.

        The last row belongs to the token after `tokens`, (batch, tokens).
        """
        embedded = model.embedding(tokens)
        features = model.hidden(tokens)
        for step in range(depth):
            follow = embedded[:, step + 1 :]
            features = self(features[:, : follow.shape[1]], follow, model.rotation(step, follow.shape[1]))
        return model.head(features).softmax(-1)

    def acceptance(self, model: GPT, tokens: Tensor, depth: int = 1) -> float:
        """Return the mean probability that guess `depth` is kept at temperature 1 if those before it were: Σ min(p, q).

        Model and layer both follow the text of `tokens`, (batch, tokens).
        """
        with torch.no_grad():
            own = model(tokens).softmax(-1)[:, depth:]
            return float(torch.minimum(own, self.chances(model, tokens, depth)).sum(-1).mean())


@dataclass
class Speculated:
    """The tokens of one request, and how they were found. `passes` counts those of the model after the prompt's."""

    tokens: list[int]
    passes: int = 0
    judged: int = 0  # guesses that were compared with the model: none after the first that is not kept
    accepted: int = 0

    @property
    def acceptance(self) -> float:
        """The share of the judged guesses that was kept."""
        return self.accepted / max(1, self.judged)


@torch.inference_mode()
def speculate(model: GPT, head: FeatureHead, prompt: Sequence[int], sampling: Sampling, guesses: int) -> Speculated:
    """Generate `sampling.max_tokens` tokens, `guesses` of them guessed by `head` before each pass of the model.

    At temperature 0 the tokens are those of `generate`; above it they have the same distribution. Raises ValueError if
    the prompt is empty or too long, or without a guess.
    """
    longest = len(prompt) + sampling.max_tokens + guesses - 1
    if not prompt or longest > model.config.max_sequence:
        raise ValueError(
            f"{len(prompt)} tokens of prompt, max_tokens = {sampling.max_tokens} and guesses = {guesses} need "
            f"{longest} positions: expected a prompt, and at most {model.config.max_sequence}, the model's max_sequence"
        )
    if guesses < 1:
        raise ValueError(f"guesses = {guesses}: expected at least 1; call `generate` to decode without guesses")
    weight = model.head.weight
    cache = ContiguousCache(model.config, 1, longest, dtype=weight.dtype, device=weight.device)
    drafting = _Drafting(model, head, longest)
    request = Request("speculated", tuple(prompt), sampling)
    features = cache.hidden(model, _row(prompt, weight), _at(0, weight))
    request.output = choose(model.head(features[0, -1:]), [sampling], [len(prompt)]).tolist()
    result = Speculated(request.output)
    start = 0  # of `features`
    while len(request.output) < sampling.max_tokens:
        tokens = [*prompt, *request.output]
        guess = drafting.guess(features, tokens[start + 1 :], start, request, guesses)
        start = len(tokens) - 1
        features = cache.hidden(model, _row([tokens[-1], *guess.tokens], weight), _at(start, weight))
        new = judge(request, guess, model.head(features[0]))
        features = features[:, : len(new)]
        request.output += new
        result.passes += 1
        result.accepted += len(new) - 1
        result.judged += min(len(new), guesses)
    del request.output[sampling.max_tokens :]
    return result


class _Drafting:
    """The extra layer with its cache of keys and values."""

    def __init__(self, model: GPT, head: FeatureHead, capacity: int):
        weight = model.head.weight
        self._model = model
        self._head = head
        self._cache = ContiguousCache(
            replace(head.config, layers=1), 1, capacity, dtype=weight.dtype, device=weight.device
        )

    def guess(self, features: Tensor, follow: Sequence[int], start: int, request: Request, count: int) -> Guess:
        """Guess the `count` tokens that come next.

        `features`, (1, tokens, width), are those of the model from position `start` on, and `follow` the token after
        each of these positions.
        """
        tokens: list[int] = []
        chances = []
        for _ in range(count):
            features = self._next(features, follow, start)[:, -1:]
            chances.append(probabilities(self._model.head(features[0]), [request.sampling]))
            position = request.length + len(tokens)
            tokens += draw(chances[-1], [request.sampling.seed], [position], stream=DRAFT_NOISE).tolist()
            start += len(follow)
            follow = tokens[-1:]
        return Guess(tokens, torch.cat(chances))

    def _next(self, features: Tensor, follow: Sequence[int], start: int) -> Tensor:
        """Return the features of the next positions, and keep keys and values."""
        weight = self._model.head.weight
        layer: Any = _WithFeatures(self._model, self._head, features)
        return self._cache.hidden(layer, _row(follow, weight), _at(start, weight))


@dataclass(frozen=True)
class _WithFeatures:
    """The extra layer in the place of a model, for a cache that passes tokens."""

    model: GPT
    head: FeatureHead
    features: Tensor

    def hidden(self, tokens: Tensor, *, start: Tensor, caches: Sequence[KeyValueCache]) -> Tensor:
        rotation = self.model.rotation(start, tokens.shape[1])
        return self.head(self.features, self.model.embedding(tokens), rotation, caches[0])


def _row(tokens: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor([list(tokens)], device=like.device)


def _at(position: int, like: Tensor) -> Tensor:
    return torch.tensor([position], device=like.device)
