"""How many tokens each expert gets on the busiest rank, which all others wait for."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

__all__ = ["ROWS", "Loads", "loads"]

ROWS = (16, 32, 64, 128, 256)
"""Tokens that a program of a grouped product may handle at a time."""
_DRAWS = 10
"""Random routings whose mean counts."""


@dataclass(frozen=True)
class Loads:
    """The busiest rank: experts with at least one token, tokens of all its experts, and blocks of `ROWS[i]` tokens.

    One element per layer, and in `blocks` one row per entry of `ROWS`. They are means over random routings.
    """

    active: np.ndarray
    tokens: np.ndarray
    blocks: np.ndarray

    def rows(self, chosen: np.ndarray) -> "Loads":
        """Return the layers that a mask or an array of indices chooses."""
        return Loads(self.active[chosen], self.tokens[chosen], self.blocks[:, chosen])


def loads(tokens: np.ndarray, top_k: np.ndarray, experts: np.ndarray, ranks: np.ndarray, skew: np.ndarray) -> Loads:
    """Return the loads if each of `tokens` chooses `top_k` of `experts` that are spread over `ranks`.

    With skew 0 all experts are chosen equally often. Otherwise their popularity follows a power law with this exponent,
    cut off at 1 and at 0.8 of the tokens, or at 0.01 and 2 if there are fewer choices than experts. These are the
    distributions of the published measurements (https://github.com/ai-dynamo/aiconfigurator). No expert gets a token
    twice. Raises ValueError if the ranks do not divide the experts.
    """
    layers = [
        _layer(int(count), int(chosen), int(of), int(spread), float(exponent))
        for count, chosen, of, spread, exponent in zip(tokens, top_k, experts, ranks, skew, strict=True)
    ]
    active, total, *blocks = np.array(layers).T
    return Loads(active, total, np.array(blocks))


@lru_cache(maxsize=4096)
def _layer(tokens: int, top_k: int, experts: int, ranks: int, skew: float) -> tuple[float, ...]:
    """Return active experts, tokens, and blocks of each size, on the busiest rank."""
    if experts % ranks:
        raise ValueError(f"ranks = {ranks}: expected a divisor of experts = {experts}")
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k = {top_k}: expected 1 to experts = {experts}")
    if skew:
        random = np.random.default_rng(0)
        drawn = np.array([_skewed(tokens, top_k, experts, ranks, skew, random) for _ in range(_DRAWS)])
    else:
        drawn = _even(tokens * top_k, experts, ranks)[None]
    blocks = [np.ceil(drawn / rows).sum(axis=1).mean() for rows in ROWS]
    return tuple(map(float, ((drawn > 0).sum(axis=1).mean(), drawn.sum(axis=1).mean(), *blocks)))


def _even(choices: int, experts: int, ranks: int) -> np.ndarray:
    """Return the choices of each expert on the rank with most of them, if all are chosen equally often."""
    if choices >= experts:
        return np.full(experts // ranks, choices / experts)
    used = -(-choices // ranks)
    return np.repeat([1.0, 0.0], [used, experts // ranks - used])


def _skewed(tokens: int, top_k: int, experts: int, ranks: int, skew: float, random: np.random.Generator) -> np.ndarray:
    """Draw the popularity of all experts, and return the choices of each expert on the busiest rank."""
    choices = tokens * top_k
    low, high = np.array([1.0, 0.8 * tokens] if choices > experts else [0.01, 2.0]) ** (1 - skew)
    popularity = (low + (high - low) * random.random(experts)) ** (1 / (1 - skew))
    counts = np.round(popularity / popularity.sum() * choices).astype(int)
    by_rank = np.minimum(counts, tokens).reshape(ranks, -1)
    missing = choices - int(by_rank.sum())
    for rank, own in enumerate(by_rank):
        share = abs(missing) // ranks + (rank < abs(missing) % ranks)
        if missing > 0:
            _pour(own, share, tokens)
        else:
            for _ in range(share):
                own[own.argmax()] -= 1
    return by_rank[by_rank.sum(axis=1).argmax()]


def _pour(counts: np.ndarray, amount: int, most: int) -> None:
    """Raise the smallest counts in place to a common level, at most `most`, until `amount` is used up."""
    low = int(counts.min())
    high = most
    while low < high:
        middle = (low + high + 1) // 2
        if np.maximum(middle - counts, 0).sum() <= amount:
            low = middle
        else:
            high = middle - 1
    amount -= int(np.maximum(low - counts, 0).sum())
    np.maximum(counts, low, out=counts)
    if low < most:
        counts[np.flatnonzero(counts == low)[:amount]] += 1
