"""Capacity of experts: how many tokens an expert takes, which tokens are dropped, and the load of experts as data.

With a capacity, no expert computes more than a stated number of rows, so memory and time are known beforehand (Lepikhin
et al. 2020, "GShard", section 2.2). The price is that further tokens are dropped, and pass the layer only through its
residual connection. Without a capacity (`factor = inf`; Gale et al. 2022, "MegaBlocks") no token is dropped, and the
slowest expert determines the time of a layer.
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.distributed as dist
    from jaxtyping import Bool, Int
    from torch import Tensor

__all__ = ["Load", "expert_capacity", "gather_load", "keep_within_capacity", "place_among_equals"]


def expert_capacity(tokens: int, experts: int, k: int, factor: float) -> int:
    """⌈k · tokens / experts · factor⌉: rows that one expert takes from the tokens of one rank, and never more than
    `tokens`, since a token's k experts differ. `factor` counts as the decimal that is written: 1.1 is 11/10.

    Raises:
        ValueError: factor is not above 0, or k is more than there are experts.
    """
    if not factor > 0:
        raise ValueError(f"capacity factor = {factor}: expected a number above 0; inf drops nothing")
    if not 1 <= k <= experts or tokens < 0:
        raise ValueError(f"{tokens} tokens, k = {k} of {experts} experts: expected 0 or more, and 1 ≤ k ≤ experts")
    if math.isinf(factor):
        return tokens
    return min(tokens, math.ceil(Fraction(k * tokens, experts) * Fraction(str(factor))))


def keep_within_capacity(chosen: Int[Tensor, "tokens k"], experts: int, factor: float) -> Bool[Tensor, "tokens k"]:
    """Say which choices the experts keep: each one its first choices up to `expert_capacity`.

    All first choices come before all second choices, and each of these in the order of tokens, so that a second choice
    never displaces a first one (GShard, algorithm 1).
    """
    capacity = expert_capacity(len(chosen), experts, chosen.shape[1], factor)
    return (place_among_equals(chosen.T.flatten()) < capacity).view(chosen.shape[::-1]).T


def place_among_equals(values: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return how often each value has stood before: 0 for the first of its kind, then 1, 2, …"""
    import torch

    by_value = values.sort(stable=True)
    first = torch.searchsorted(by_value.values, by_value.values)  # where the equal ones begin
    place = torch.empty_like(values)
    place[by_value.indices] = torch.arange(len(values), device=values.device) - first
    return place


@dataclass(frozen=True)
class Load:
    """How the choices of some tokens fell on the experts. With capacity, at most that many per rank are kept."""

    chosen: tuple[int, ...]
    """The number of choices that fell on each expert."""
    kept: tuple[int, ...]
    """The number of rows that each expert computes."""

    @property
    def dropped(self) -> int:
        return sum(self.chosen) - sum(self.kept)

    @property
    def imbalance(self) -> float:
        """Rows of the busiest expert divided by the mean: how much longer the layer takes than a balanced one, if each
        expert has its own device. 1.0 if there are no rows."""
        return max(self.kept) * len(self.kept) / sum(self.kept) if sum(self.kept) else 1.0

    def per_rank(self, ranks: int) -> tuple[int, ...]:
        """Return the rows that each rank computes, if each has an equal part of the experts."""
        share = len(self.kept) // ranks
        return tuple(sum(self.kept[rank * share : (rank + 1) * share]) for rank in range(ranks))


def gather_load(load: Load, group: dist.ProcessGroup | None = None) -> Load:
    """The load of all ranks together: one all-reduce of two numbers per expert."""
    import torch
    import torch.distributed as dist

    both = torch.tensor([load.chosen, load.kept])
    dist.all_reduce(both, group=group)
    return Load(*(tuple(counts) for counts in both.tolist()))
