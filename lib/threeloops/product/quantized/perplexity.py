"""Measure how well a model predicts a text: mean −log p per token, in nats, and its exponential, the perplexity."""

# ruff: noqa: F821  the strings are jaxtyping shapes, not forward references

import math
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from threeloops.models.gpt import GPT

__all__ = ["Perplexity", "perplexity"]


@dataclass(frozen=True)
class Perplexity:
    """Mean of −log p in nats over `tokens` tokens. If tokens are bytes, this is nats per byte."""

    nats: float
    tokens: int

    @property
    def value(self) -> float:
        """The perplexity per token: the model is as unsure as between so many equally likely tokens."""
        return math.exp(self.nats)

    def nats_per_byte(self, size: int) -> float:
        """Return nats per byte of a text of `size` bytes, which compares models with different tokenisers."""
        return self.nats * self.tokens / size


@torch.no_grad()
def perplexity(
    model: GPT, tokens: Int[Tensor, "tokens"], *, window: int | None = None, stride: int | None = None, batch: int = 8
) -> Perplexity:
    """Compute the perplexity of all tokens but the first, each predicted once.

    The model reads windows of `window` tokens (its longest sequence), each `stride` tokens (a window) after the
    previous one. All predictions of the first window count, and the last `stride` predictions of each later window. So
    a token is predicted from at least window − stride + 1 tokens before it, if there are so many. A stride of a whole
    window is cheap, as in most papers on quantisation. A short stride gives every token its context. The last window
    ends with the text and is moved back to be complete. Raises ValueError for tokens, a window or a stride that do not
    fit.
    """
    config = model.config
    window = config.max_sequence if window is None else window
    stride = window if stride is None else stride
    if tokens.ndim != 1 or len(tokens) < 2:
        raise ValueError(f"tokens has shape {tuple(tokens.shape)}: expected (tokens,), at least 2 of them")
    if not 1 <= window <= config.max_sequence:
        raise ValueError(f"window = {window}: expected 1 to max_sequence = {config.max_sequence} tokens")
    if not 1 <= stride <= window:
        raise ValueError(f"stride = {stride}: expected 1 to {window}, the window; else tokens would be left out")
    if tokens.min() < 0 or tokens.max() >= config.vocabulary_size:
        raise ValueError(
            f"tokens go from {int(tokens.min())} to {int(tokens.max())}: expected 0 to {config.vocabulary_size - 1}, "
            "the model's vocabulary"
        )
    tokens = tokens.to(model.embedding.weight.device)
    predictions = len(tokens) - 1
    window = min(window, predictions)
    ends = [*range(window, predictions, stride), predictions]
    total = torch.zeros((), dtype=torch.float64, device=tokens.device)
    before = 0
    for first in range(0, len(ends), batch):
        group = ends[first : first + batch]
        reads = torch.stack([tokens[end - window : end] for end in group])
        targets = torch.stack([tokens[end - window + 1 : end + 1] for end in group])
        for row, end in enumerate(group):
            targets[row, : window - (end - before)] = -100  # counted by the window before
            before = end
        logits = model.head(model.hidden(reads))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        total += losses.double().sum()
    return Perplexity(float(total) / predictions, predictions)
