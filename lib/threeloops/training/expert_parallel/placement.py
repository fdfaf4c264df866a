"""Copies of busy experts, placed so that ranks have equal work.

Serving a model with many experts on many GPUs ("wide expert parallelism") keeps a few experts on each, so the busiest
expert decides the time of a layer. Slots beyond one per expert hold copies of the busiest ones, and copies share the
tokens. DeepSeek calls these redundant experts, and published both steps as EPLB (github.com/deepseek-ai/EPLB, its
global policy): copy the expert that has most tokens per copy, again and again; then place copies, the heaviest first,
each on the rank that has least to do. vLLM and SGLang use it under the same name.
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from threeloops.training.expert_parallel.capacity import place_among_equals
from threeloops.training.expert_parallel.router import Router, Routing

__all__ = ["CopyRouter", "Placement", "count_copies", "place_copies"]


@dataclass(frozen=True)
class Placement:
    """`experts[r]` are the experts in the slots of rank r. All ranks have equally many slots; an expert may have
    several."""

    experts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len({len(slots) for slots in self.experts}) != 1 or set(self.slots) != set(range(max(self.slots) + 1)):
            raise ValueError(
                f"experts = {self.experts}: expected equally many slots on every rank, and each expert from 0 to the "
                "last at least once"
            )

    @property
    def slots(self) -> tuple[int, ...]:
        """The expert in each slot, rank after rank."""
        return tuple(expert for rank in self.experts for expert in rank)

    def rank_loads(self, loads: Sequence[float]) -> tuple[float, ...]:
        """Return the load of each rank, if copies of an expert share its load equally."""
        copies = [self.slots.count(expert) for expert in range(len(loads))]
        return tuple(sum(loads[expert] / copies[expert] for expert in rank) for rank in self.experts)

    def imbalance(self, loads: Sequence[float]) -> float:
        """The load of the busiest rank divided by the mean of all; 1.0 if there is no load."""
        ranks = self.rank_loads(loads)
        return max(ranks) * len(ranks) / sum(ranks) if sum(ranks) else 1.0


def count_copies(loads: Sequence[float], slots: int) -> tuple[int, ...]:
    """Return how many copies each expert gets in `slots` slots: one each, and each further one to the expert with the
    most load per copy (of equal ones the lower index).

    No other numbers of copies have a lower maximum of load per copy.

    Raises:
        ValueError: there are fewer slots than experts, or a load is negative or not finite.
    """
    if slots < len(loads) or not loads or not all(0 <= load < math.inf for load in loads):
        raise ValueError(
            f"{len(loads)} experts with loads {list(loads)} in {slots} slots: expected at least one expert and a slot "
            "for each, and finite loads ≥ 0"
        )
    copies = [1] * len(loads)
    for _ in range(slots - len(loads)):
        copies[max(range(len(loads)), key=lambda expert: (loads[expert] / copies[expert], -expert))] += 1
    return tuple(copies)


def place_copies(loads: Sequence[float], ranks: int, slots_per_rank: int) -> Placement:
    """Return a placement of all experts and of the copies that fill the slots.

    Copies go, in falling order of load, to the rank with the least load among those that have a free slot and, if there
    is such a rank, no copy of the same expert.
    """
    if ranks < 1 or slots_per_rank < 1:
        raise ValueError(f"{ranks} ranks with {slots_per_rank} slots each: expected at least one of both")
    copies = count_copies(loads, ranks * slots_per_rank)
    share = [load / count for load, count in zip(loads, copies, strict=True)]
    placed: list[list[int]] = [[] for _ in range(ranks)]
    busy = [0.0] * ranks
    for expert in sorted(range(len(loads)), key=lambda expert: -share[expert]):
        for _ in range(copies[expert]):
            free = [rank for rank in range(ranks) if len(placed[rank]) < slots_per_rank]
            rank = min(free, key=lambda rank: (expert in placed[rank], busy[rank], rank))
            placed[rank].append(expert)
            busy[rank] += share[expert]
    return Placement(tuple(map(tuple, placed)))


class CopyRouter(nn.Module):
    """A router whose choices are slots instead of experts: the copies of an expert take turns, in the order of tokens.

    `ExpertParallel(CopyRouter(router, placement), own, group)` is a layer with copies, if `own` are the experts
    `placement.experts[rank]`. It gives what `ExpertParallel(router, …)` gives. It is meant for inference: in training
    the gradients of an expert's copies would have to be added, and `load_balancing_loss` needs the choices of `router`.
    """

    _slots: Tensor
    _copies: Tensor

    def __init__(self, router: Router, placement: Placement, *, first: int = 0) -> None:
        """`first` is the copy that gets the first token. Give each rank another one: its rank, for example."""
        super().__init__()
        if len(set(placement.slots)) != router.experts:
            raise ValueError(
                f"a placement of {len(set(placement.slots))} experts for a router of {router.experts}: expected equal "
                "numbers"
            )
        by_expert = [[s for s, e in enumerate(placement.slots) if e == expert] for expert in range(router.experts)]
        most = max(map(len, by_expert))
        self.router = router
        self.k = router.k
        self.experts = len(placement.slots)
        self._first = first
        self.register_buffer("_slots", torch.tensor([slots + slots[:1] * (most - len(slots)) for slots in by_expert]))
        self.register_buffer("_copies", torch.tensor(list(map(len, by_expert))))

    def forward(self, x: Float[Tensor, "tokens width"]) -> Routing:
        routing: Routing = self.router(x)
        return replace(routing, experts=self._slot_of(routing.experts))

    def _slot_of(self, chosen: Int[Tensor, "tokens k"]) -> Int[Tensor, "tokens k"]:
        in_order = chosen.flatten()
        turn = place_among_equals(in_order) + self._first
        return self._slots[in_order, turn % self._copies[in_order]].view(chosen.shape)
