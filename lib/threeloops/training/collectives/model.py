"""Choose the fastest all-reduce: fit latency, bandwidth and reduction rate to measurements, and predict from them.

NCCL decides in the same way. For each algorithm it adds a latency times its steps and the bytes over a bandwidth, and
the lowest sum wins (src/graph/tuning.cc: ncclTopoGetAlgoTime). The switch between short and long tensors is that of
Thakur, Rabenseifner and Gropp 2005.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from threeloops.training.collectives.cost import Cost, Link
from threeloops.training.collectives.halving import (
    halving_doubling_all_reduce,
    halving_doubling_all_reduce_cost,
    recursive_doubling_all_reduce,
    recursive_doubling_all_reduce_cost,
)
from threeloops.training.collectives.peers import Peers
from threeloops.training.collectives.ring import ring_all_reduce, ring_all_reduce_cost
from threeloops.training.collectives.tree import (
    naive_all_reduce,
    naive_all_reduce_cost,
    tree_all_reduce,
    tree_all_reduce_cost,
)

if TYPE_CHECKING:
    import torch

__all__ = ["ALL_REDUCES", "AllReduce", "best_algorithm", "fastest", "fit", "predicted_seconds"]


class AllReduce(NamedTuple):
    """`run(peers, tensor, operation)` works in place; `cost(elements, element_size, ranks, link)`."""

    run: Callable[[Peers, torch.Tensor, str], None]
    cost: Callable[[int, int, int, Link], Cost]


ALL_REDUCES = {
    "ring": AllReduce(ring_all_reduce, ring_all_reduce_cost),
    "halving-doubling": AllReduce(halving_doubling_all_reduce, halving_doubling_all_reduce_cost),
    "recursive doubling": AllReduce(recursive_doubling_all_reduce, recursive_doubling_all_reduce_cost),
    "tree": AllReduce(tree_all_reduce, tree_all_reduce_cost),
    "naive": AllReduce(naive_all_reduce, naive_all_reduce_cost),
}
_NO_CHOICE = {"naive"}


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> Link:
    """Return the link whose α + s/β is nearest to measured `seconds` for messages of `sizes` bytes.

    The fit minimises the squares of relative errors, so that a small message counts as much as a large one, with α ≥ 0
    and 1/β ≥ 0. If times do not grow with the size, the bandwidth is infinite. Fitted to times of reductions,
    1/bandwidth is γ.

    Raises:
        ValueError: there are fewer than two different sizes, or a number is not a valid size or time.
    """
    if len(sizes) != len(seconds):
        raise ValueError(f"{len(sizes)} sizes and {len(seconds)} times: expected a time for each size")
    for name, numbers, least in (("size", sizes, "≥ 0"), ("time", seconds, "> 0")):
        for number in numbers:
            if not (math.isfinite(number) and (number > 0 or (number == 0 and name == "size"))):
                raise ValueError(f"a {name} is {number}: expected a finite number {least}; leave failed runs out")
    if len(set(sizes)) < 2:
        raise ValueError(f"{len(set(sizes))} different sizes: expected two or more, to tell latency from bandwidth")
    largest = max(sizes)
    ones = [1 / t for t in seconds]
    parts = [size / largest / t for size, t in zip(sizes, seconds, strict=True)]
    xx = _dot(ones, ones)
    xy = _dot(ones, parts)
    yy = _dot(parts, parts)
    x = sum(ones)
    y = sum(parts)
    determinant = xx * yy - xy * xy
    both = (x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant
    candidates = [both] if min(both) >= 0 else [(x / xx, 0.0), (0.0, y / yy)]

    def error(candidate: tuple[float, float]) -> float:
        return sum((candidate[0] * one + candidate[1] * part - 1) ** 2 for one, part in zip(ones, parts, strict=True))

    latency, whole = min(candidates, key=error)
    return Link(latency, largest / whole if whole > 0 else math.inf)


def predicted_seconds(size: int, ranks: int, link: Link, element_size: int = 4) -> dict[str, float]:
    """Predict the time of each algorithm for an all-reduce of `size` bytes."""
    elements = -(-size // element_size)
    return {
        name: algorithm.cost(elements, element_size, ranks, link).seconds for name, algorithm in ALL_REDUCES.items()
    }


def best_algorithm(size: int, ranks: int, link: Link, element_size: int = 4) -> str:
    """The name of the fastest all-reduce of `size` bytes; of equal ones the first in `ALL_REDUCES`.

    The naive one is not a candidate: the model lets all ranks send to rank 0 at the same time for the price of one
    message, and real ports and cores take them one after another.
    """
    seconds = predicted_seconds(size, ranks, link, element_size)
    return min(seconds.keys() - _NO_CHOICE, key=lambda name: (seconds[name], list(seconds).index(name)))


def fastest(
    sizes: Sequence[int], ranks: Sequence[int], link: Link, element_size: int = 4
) -> tuple[tuple[str, ...], ...]:
    """The map of the best algorithms: a row for each number of ranks, a column for each size in bytes."""
    return tuple(tuple(best_algorithm(size, count, link, element_size) for size in sizes) for count in ranks)


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
