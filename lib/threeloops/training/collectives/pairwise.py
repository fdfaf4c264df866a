"""Collectives in pairs: in step k each rank sends to the rank k places after it and receives from the one k places
before it.

All-to-all is MPICH's algorithm for long messages (Thakur, Rabenseifner, Gropp 2005, section 4.4). Each block goes
straight to its target, so a rank sends exactly the blocks of the others, and never more than one at a time.

The one-shot and the two-shot all-reduce are what engines run behind an NVLink switch (vLLM's
csrc/custom_all_reduce.cuh). GPUs there read each other's memory. Here they send, which is as many bytes through the
same ports. No message waits for one to arrive, so latencies do not add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from threeloops.training.collectives.cost import Cost, Link, chunk_length, require_sizes
from threeloops.training.collectives.peers import Peers, TorchPeers
from threeloops.training.collectives.reduction import Reduction, flat, reduction

if TYPE_CHECKING:
    import torch

__all__ = [
    "all_to_all", "all_to_all_cost", "one_shot_all_reduce", "one_shot_all_reduce_cost", "two_shot_all_reduce",
    "two_shot_all_reduce_cost",
]  # fmt: skip


def all_to_all(peers: Peers, outs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
    """Tensor j of rank i becomes out i of rank j. Lengths may differ, and be 0."""
    for name, given in (("outs", outs), ("tensors", tensors)):
        if len(given) != peers.size:
            raise ValueError(f"{name} has {len(given)} tensors: expected one for each of {peers.size} ranks")
    rank = peers.rank
    size = peers.size
    if outs[rank].shape != tensors[rank].shape:
        raise ValueError(
            f"outs[{rank}] has shape {tuple(outs[rank].shape)}: this rank's own tensor has {tuple(tensors[rank].shape)}"
        )
    import torch

    with torch.no_grad():
        outs[rank].detach().copy_(tensors[rank])
        for step in range(1, size):
            to = (rank + step) % size
            source = (rank - step) % size
            got = torch.empty_like(outs[source], memory_format=torch.contiguous_format)
            peers.wait(peers.exchange(tensors[to].detach().contiguous(), to, got, source))
            outs[source].detach().copy_(got)


def all_to_all_cost(lengths: Sequence[Sequence[int]], element_size: int, link: Link) -> Cost:
    """Cost of sending `lengths[i][j]` elements from rank i to rank j. With n everywhere: (N − 1)(α + n·e/β) seconds.

    In general rank j begins step k + 1 when the block that rank j − k sent in step k has arrived, and its own has left.
    """
    ranks = len(lengths)
    for source, row in enumerate(lengths):
        if len(row) != ranks:
            raise ValueError(f"lengths[{source}] has {len(row)} numbers: expected one for each of {ranks} ranks")
        for length in row:
            require_sizes(length, element_size, ranks)
    clock = [0.0] * ranks
    for step in range(1, ranks):
        arrived = [clock[at - step] + link.seconds(lengths[at - step][at] * element_size) for at in range(ranks)]
        departed = [clock[at] + lengths[at][(at + step) % ranks] * element_size / link.bandwidth for at in range(ranks)]
        clock = [max(pair) for pair in zip(arrived, departed, strict=True)]
    sent = tuple((sum(row) - row[rank]) * element_size for rank, row in enumerate(lengths))
    return Cost(sent, (max(ranks - 1, 0),) * ranks, max(clock, default=0.0))


def one_shot_all_reduce(peers: TorchPeers, tensor: torch.Tensor, operation: str = "sum") -> None:
    """Replace `tensor` on each rank by the reduction over all ranks: everybody sends all of it to everybody.

    Each rank reduces in the order of ranks, so the bits are equal on all. It needs memory for N tensors.
    """
    how = reduction(operation, tensor)
    with flat(tensor) as buffer:
        parts = _gather(peers, [buffer] * peers.size, [buffer.numel()] * peers.size)
        buffer.copy_(_reduced_in_order(parts, how, peers.size))


def two_shot_all_reduce(peers: TorchPeers, tensor: torch.Tensor, operation: str = "sum") -> None:
    """Replace `tensor` on each rank by the reduction over all ranks: rank i reduces chunk i, and sends it to all."""
    how = reduction(operation, tensor)
    with flat(tensor) as buffer:
        chunks = list(buffer.tensor_split(peers.size))
        own = chunks[peers.rank]
        parts = _gather(peers, chunks, [own.numel()] * peers.size)
        own.copy_(_reduced_in_order(parts, how, peers.size))
        for chunk, part in zip(chunks, _gather(peers, [own] * peers.size, list(map(len, chunks))), strict=True):
            chunk.copy_(part)


def one_shot_all_reduce_cost(elements: int, element_size: int, ranks: int, port: Link) -> Cost:
    """α + (N − 1)·n·e/β seconds, if all ranks are behind one switch: `port` is a rank's own link to it and back."""
    require_sizes(elements, element_size, ranks)
    others = ranks - 1
    sent = others * elements * element_size
    return Cost((sent,) * ranks, (others,) * ranks, port.seconds(sent) if others else 0.0)


def two_shot_all_reduce_cost(elements: int, element_size: int, ranks: int, port: Link) -> Cost:
    """2(α + (N − 1)·⌈n/N⌉·e/β) seconds behind one switch, for n divisible by N, and at most that otherwise."""
    require_sizes(elements, element_size, ranks)
    others = ranks - 1
    chunks = [chunk_length(elements, ranks, rank) * element_size for rank in range(ranks)]
    sent = tuple(elements * element_size - chunk + others * chunk for chunk in chunks)
    return Cost(sent, (2 * others,) * ranks, 2 * port.seconds(others * chunks[0]) if others else 0.0)


def _gather(peers: TorchPeers, outgoing: Sequence[torch.Tensor], lengths: Sequence[int]) -> list[torch.Tensor]:
    """Send each rank its part at once; returns what all ranks sent here, in the order of ranks, this one's included."""
    import torch

    parts = [torch.empty(length, dtype=outgoing[0].dtype, device=outgoing[0].device) for length in lengths]
    parts[peers.rank] = outgoing[peers.rank].clone()
    peers.exchange_all(outgoing, parts)
    return parts


def _reduced_in_order(parts: Sequence[torch.Tensor], how: Reduction, ranks: int) -> torch.Tensor:
    result = parts[0]
    for part in parts[1:]:
        how.combine(result, part)
    how.finish(result, ranks)
    return result
