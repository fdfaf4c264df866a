"""Cut the states of all ranks anew for another number of ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["reshard"]


def reshard(states: Sequence[Mapping[str, Any]], rank: int, ranks: int) -> dict[str, Any]:
    """Return what `ZeroOptimizer.state_dict` would have returned on `rank` of `ranks`, given its results on all ranks
    of a program.

    Masters and those optimizer states that are as long as a shard are joined and cut. The others (such as a number of
    steps) are the same on all ranks, and taken from the first. The buckets must be the same, which holds for the same
    model and the same limits.

    Raises:
        ValueError: the states are not those of ranks 0, 1, … of one program.
    """
    if not 0 <= rank < ranks:
        raise ValueError(f"rank = {rank} of {ranks}: expected 0 to {ranks - 1}")
    here = [(state["rank"], state["ranks"]) for state in states]
    if not here or here != [(place, len(states)) for place in range(len(states))]:
        raise ValueError(f"states of (rank, ranks) {here}: expected one of every rank of a program, in order")
    first = states[0]
    shards = []
    moments = dict(first["optimizer"]["state"])
    for bucket, shard in enumerate(first["shards"]):
        shards.append(shard | {"values": _cut([state["shards"][bucket]["values"] for state in states], rank, ranks)})
        if bucket in moments:
            of_all = [state["optimizer"]["state"][bucket] for state in states]
            moments[bucket] = {
                name: _cut([state[name] for state in of_all], rank, ranks)
                if isinstance(value, Tensor) and value.dim() == 1
                else value
                for name, value in of_all[0].items()
            }
    return {
        "rank": rank,
        "ranks": ranks,
        "shards": shards,
        "optimizer": {**first["optimizer"], "state": moments},
    }


def _cut(parts: Sequence[Tensor], rank: int, ranks: int) -> Tensor:
    """Return this rank's shard of the joined parts. All shards have the same length, except that the last ones lack
    what would be padding (`FlatLayout`)."""
    whole = torch.cat(list(parts))
    length = -(-len(whole) // ranks)
    return whole[rank * length : (rank + 1) * length].clone()
