"""Collectives that go through one rank: binomial trees, and the naive all-reduce that they replace.

Places are counted from the root. In step k of a broadcast the 2^k ranks that have the tensor send it 2^k places on. A
reduce is the same tree backwards. The parent of rank p > 0 is p without its highest bit, so the bits of p are its path.
MPICH uses binomial trees for short messages (Thakur, Rabenseifner, Gropp 2005, section 4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from threeloops.training.collectives.cost import Cost, Link, require_sizes
from threeloops.training.collectives.peers import Peers
from threeloops.training.collectives.reduction import Reduction, flat, reduction, require_rank, scratch

if TYPE_CHECKING:
    import torch

__all__ = [
    "broadcast",
    "broadcast_cost",
    "naive_all_reduce",
    "naive_all_reduce_cost",
    "reduce",
    "reduce_cost",
    "tree_all_reduce",
    "tree_all_reduce_cost",
]


def broadcast(peers: Peers, tensor: torch.Tensor, root: int = 0) -> None:
    """Replace `tensor` on each rank by the root's `tensor`."""
    require_rank("root", root, peers.size)
    with flat(tensor) as buffer:
        _broadcast(peers, buffer, root)


def reduce(peers: Peers, tensor: torch.Tensor, root: int = 0, operation: str = "sum") -> None:
    """Replace `tensor` on `root` by the reduction over all ranks; on other ranks it then holds a partial result."""
    how = reduction(operation, tensor)
    require_rank("root", root, peers.size)
    with flat(tensor) as buffer:
        _reduce(peers, buffer, root, how)


def tree_all_reduce(peers: Peers, tensor: torch.Tensor, operation: str = "sum") -> None:
    """Replace `tensor` on each rank by the reduction over all ranks: a reduce to rank 0, then a broadcast."""
    how = reduction(operation, tensor)
    with flat(tensor) as buffer:
        _reduce(peers, buffer, 0, how)
        _broadcast(peers, buffer, 0)


def naive_all_reduce(peers: Peers, tensor: torch.Tensor, operation: str = "sum") -> None:
    """Replace `tensor` on each rank by the reduction over all ranks, the simplest way, for comparison: all send to rank
    0, which reduces in the order of ranks and sends the result to one after another."""
    how = reduction(operation, tensor)
    others = range(1, peers.size)
    with flat(tensor) as buffer:
        if peers.rank:
            peers.wait(peers.send(buffer, 0))
            peers.wait(peers.receive(buffer, 0))
            return
        got = scratch(buffer, buffer.numel())
        for source in others:
            peers.wait(peers.receive(got, source))
            how.combine(buffer, got)
        how.finish(buffer, peers.size)
        for to in others:
            peers.wait(peers.send(buffer, to))


def broadcast_cost(elements: int, element_size: int, ranks: int, link: Link) -> Cost:
    """max over places p < N of (bits of p)·n·e/β + (ones in p)·α seconds: for N = 2^m this is m(α + n·e/β).

    A rank sends to its children one after another, and begins the next as soon as a message has left: each bit of p
    stands for one transfer before the tensor reaches p. Only the bits that are 1 are messages on the way to p itself.
    The root is rank 0; with another one the lists of bytes and messages are rotated.
    """
    require_sizes(elements, element_size, ranks)
    size = elements * element_size
    sent = tuple(_children(place, ranks) for place in range(ranks))
    seconds = _longest_path(ranks, per_message=link.latency, per_bit=size / link.bandwidth)
    return Cost(tuple(count * size for count in sent), sent, seconds)


def reduce_cost(elements: int, element_size: int, ranks: int, link: Link) -> Cost:
    """⌊log₂N⌋(α + n·e/β) seconds if reducing takes no time, because messages of several children arrive together.

    With γ > 0 a parent reduces them one after another: max over p of (ones in p)(α + n·e/β) + (bits of p)·n·e·γ.
    """
    require_sizes(elements, element_size, ranks)
    size = elements * element_size
    sent = tuple(int(place > 0) for place in range(ranks))
    seconds = _longest_path(ranks, per_message=link.seconds(size), per_bit=size * link.reduce_seconds)
    return Cost(tuple(count * size for count in sent), sent, seconds)


def tree_all_reduce_cost(elements: int, element_size: int, ranks: int, link: Link) -> Cost:
    """The sum of a reduce and a broadcast, since nothing is sent back before rank 0 has everything."""
    to_root = reduce_cost(elements, element_size, ranks, link)
    return to_root + broadcast_cost(elements, element_size, ranks, link)


def naive_all_reduce_cost(elements: int, element_size: int, ranks: int, link: Link) -> Cost:
    """2α + N·n·e/β seconds: all tensors arrive together, and N − 1 leave rank 0 one after another.

    On a machine whose rank 0 has one port in, they also arrive one after another: 2α + 2(N − 1)·n·e/β.
    """
    require_sizes(elements, element_size, ranks)
    size = elements * element_size
    others = ranks - 1
    seconds = 2 * link.latency + size * (ranks / link.bandwidth + others * link.reduce_seconds) if others else 0.0
    return Cost((others * size, *(size,) * others), (others, *(1,) * others), seconds)


def _broadcast(peers: Peers, buffer: torch.Tensor, root: int) -> None:
    place = (peers.rank - root) % peers.size
    step = 1
    while step < peers.size:
        if place < step and place + step < peers.size:
            peers.wait(peers.send(buffer, (peers.rank + step) % peers.size))
        elif step <= place < 2 * step:
            peers.wait(peers.receive(buffer, (peers.rank - step) % peers.size))
        step *= 2


def _reduce(peers: Peers, buffer: torch.Tensor, root: int, how: Reduction) -> None:
    place = (peers.rank - root) % peers.size
    step = 1 << (peers.size - 1).bit_length() >> 1
    while step:
        if place < step and place + step < peers.size:
            got = scratch(buffer, buffer.numel())
            peers.wait(peers.receive(got, (peers.rank + step) % peers.size))
            how.combine(buffer, got)
        elif step <= place < 2 * step:
            peers.wait(peers.send(buffer, (peers.rank - step) % peers.size))
        step //= 2
    if place == 0:
        how.finish(buffer, peers.size)


def _children(place: int, ranks: int) -> int:
    return sum(place + (1 << bit) < ranks for bit in range(place.bit_length(), ranks.bit_length()))


def _longest_path(ranks: int, *, per_message: float, per_bit: float) -> float:
    return max(place.bit_count() * per_message + place.bit_length() * per_bit for place in range(ranks))
