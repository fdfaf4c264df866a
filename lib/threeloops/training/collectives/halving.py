"""All-reduce between pairs of ranks at distances 1, 2, 4, …: log₂N steps, compared with N − 1 in a ring.

Recursive doubling exchanges the whole tensor in each step. Rabenseifner's algorithm halves the exchanged part from step
to step (a reduce-scatter), and then goes back the same way (an all-gather). It sends as many bytes as a ring, in
2·log₂N messages. MPICH uses the first for short tensors and the second for long ones (src/mpi/coll/allreduce; Thakur,
Rabenseifner, Gropp 2005, section 4.5).

With N = 2^m + x ranks, x of them are folded in as in MPICH: each even rank among the first 2x gives its tensor to the
next rank, waits, and gets the result from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from threeloops.training.collectives.cost import Cost, Link, require_sizes
from threeloops.training.collectives.peers import Peers
from threeloops.training.collectives.reduction import Reduction, flat, reduction, scratch

if TYPE_CHECKING:
    import torch

__all__ = [
    "halving_doubling_all_reduce",
    "halving_doubling_all_reduce_cost",
    "recursive_doubling_all_reduce",
    "recursive_doubling_all_reduce_cost",
]


def recursive_doubling_all_reduce(peers: Peers, tensor: torch.Tensor, operation: str = "sum") -> None:
    """Replace `tensor` on each rank by the reduction over all ranks, in log₂N exchanges of all of it.

    Both ranks of a pair add the same two values, so the bits are equal on all ranks.
    """
    how = reduction(operation, tensor)

    def among(member: int, members: int, buffer: torch.Tensor) -> None:
        got = scratch(buffer, buffer.numel())
        for distance in _distances(members):
            _exchange(peers, buffer, got, member ^ distance)
            how.combine(buffer, got)
        how.finish(buffer, peers.size)

    _folded(peers, tensor, how, among)


def halving_doubling_all_reduce(peers: Peers, tensor: torch.Tensor, operation: str = "sum") -> None:
    """Replace `tensor` on each rank by the reduction over all ranks, in 2·log₂N exchanges of its halves, quarters, …

    Halves of an odd number differ by one element. Of a pair the rank whose bit is set keeps the first, longer half.
    """
    how = reduction(operation, tensor)

    def among(member: int, members: int, buffer: torch.Tensor) -> None:
        own = buffer
        halved = []
        for distance in _distances(members):
            first, second = own.tensor_split(2)
            whole = own
            own, out = (first, second) if member & distance else (second, first)
            halved.append((whole, out))
            got = scratch(own, own.numel())
            _exchange(peers, out, got, member ^ distance)
            how.combine(own, got)
        how.finish(own, peers.size)
        for distance in reversed(_distances(members)):
            whole, other = halved.pop()
            _exchange(peers, own, other, member ^ distance)
            own = whole

    _folded(peers, tensor, how, among)


def recursive_doubling_all_reduce_cost(elements: int, element_size: int, ranks: int, link: Link) -> Cost:
    """m(α + n·e/β) seconds for N = 2^m. With folded ranks, it is longer by at most the two messages of the fold.

    With x ranks folded in, the members that took them in begin late. They and others wait for each other in turn; a
    chain of late messages from one such member to another changes at most the bits of x − 1, and in the other steps its
    member has only its own message to send, without α.
    """
    require_sizes(elements, element_size, ranks)
    steps, extra, size = *_split(ranks), elements * element_size
    sent = tuple(steps + 1 if rank % 2 else 1 for rank in range(2 * extra)) + (steps,) * (ranks - 2 * extra)
    seconds = steps * _reduced(link, size)
    if extra:
        without = (steps - (extra - 1).bit_length()) * link.latency
        seconds += _reduced(link, size) + max(0.0, link.seconds(size) - without)
    return Cost(tuple(count * size for count in sent), sent, seconds)


def halving_doubling_all_reduce_cost(elements: int, element_size: int, ranks: int, link: Link) -> Cost:
    """2·Σ(α + ⌈n/2^j⌉·e/β) over j = 1 … log₂N seconds, and 2(α + n·e/β) more if ranks are folded in.

    For n divisible by N = 2^m that is 2m·α + 2(N − 1)/N·n·e/β. For the rest: the first member is folded in whenever one
    is, and of each pair the other one gets the longer half from it, so the longest halves are on the critical path.
    """
    require_sizes(elements, element_size, ranks)
    steps, extra = _split(ranks)
    size = elements * element_size
    halves = [-(-elements // 2**j) * element_size for j in range(1, steps + 1)]
    sent = [_halving_bytes(elements, member, steps) * element_size for member in range(1 << steps)]
    in_pairs = [part for member in range(extra) for part in (size, sent[member] + size)]
    seconds = sum(_reduced(link, half) + link.seconds(half) for half in halves)
    return Cost(
        (*in_pairs, *sent[extra:]),
        (*(1, 2 * steps + 1) * extra, *(2 * steps,) * (ranks - 2 * extra)),
        seconds + (_reduced(link, size) + link.seconds(size) if extra else 0.0),
    )


_Among: TypeAlias = "Callable[[int, int, torch.Tensor], None]"


def _folded(peers: Peers, tensor: torch.Tensor, how: Reduction, among: _Among) -> None:
    """Run `among(member, members, buffer)` on 2^m ranks that have taken in the tensors of the others."""
    steps, extra = _split(peers.size)
    rank = peers.rank
    members = 1 << steps
    with flat(tensor) as buffer:
        if rank < 2 * extra and rank % 2 == 0:
            peers.wait(peers.send(buffer, rank + 1))
            peers.wait(peers.receive(buffer, rank + 1))
            return
        if rank < 2 * extra:
            got = scratch(buffer, buffer.numel())
            peers.wait(peers.receive(got, rank - 1))
            how.combine(buffer, got)
        among(_member(rank, extra), members, buffer)
        if rank < 2 * extra:
            peers.wait(peers.send(buffer, rank - 1))


def _exchange(peers: Peers, out: torch.Tensor, into: torch.Tensor, member: int) -> None:
    other = _rank(member, _split(peers.size)[1])
    peers.wait(peers.exchange(out, other, into, other))


def _split(ranks: int) -> tuple[int, int]:
    """m and x of N = 2^m + x, with the largest m."""
    steps = ranks.bit_length() - 1
    return steps, ranks - (1 << steps)


def _member(rank: int, extra: int) -> int:
    return rank // 2 if rank < 2 * extra else rank - extra


def _rank(member: int, extra: int) -> int:
    return 2 * member + 1 if member < extra else member + extra


def _distances(members: int) -> list[int]:
    return [1 << bit for bit in range(members.bit_length() - 1)]


def _halving_bytes(elements: int, member: int, steps: int) -> int:
    """Return the elements that a member sends: all except those it keeps at the end, then each stretch that it has on
    the way back."""
    own = elements
    back = 0
    for step in range(steps):
        own = (own + (member >> step & 1)) // 2
        back += own
    return elements - own + back


def _reduced(link: Link, size: int) -> float:
    return link.seconds(size) + link.reduce_seconds * size
