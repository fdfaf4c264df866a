"""Rings: each rank sends to the next rank and receives from the previous one, a chunk per step.

No all-reduce sends fewer bytes per rank (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters
of workstations"), and NCCL's ring is the same, cut into finer pieces (src/device/all_reduce.h). Chunk i of a tensor is
`tensor.tensor_split(ranks)[i]`. Lengths differ by at most one, and chunks of zero elements are sent too.

Chunk i starts at rank i + 1 and reaches rank i after N − 1 steps, reduced in the order i + 1, i + 2, …, i. So each
value is computed once, and the result has the same bits on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from threeloops.training.collectives.cost import Cost, Link, chunk_length, require_sizes
from threeloops.training.collectives.peers import Peers, Subset
from threeloops.training.collectives.reduction import Reduction, flat, reduction, scratch

if TYPE_CHECKING:
    import torch

__all__ = [
    "all_gather_chunks",
    "hierarchical_all_reduce",
    "hierarchical_all_reduce_cost",
    "reduce_scatter_chunks",
    "ring_all_gather",
    "ring_all_gather_cost",
    "ring_all_reduce",
    "ring_all_reduce_cost",
    "ring_reduce_scatter",
    "ring_reduce_scatter_cost",
]


def reduce_scatter_chunks(peers: Peers, chunks: Sequence[torch.Tensor], operation: str | Reduction = "sum") -> None:
    """Reduce chunk `rank` of each rank over all ranks. The other chunks then hold partial results.

    Chunks are flat and contiguous. Chunks with the same index have the same length on all ranks.
    """
    how = reduction(operation, chunks[0])
    rank = peers.rank
    size = peers.size
    for step in range(size - 1):
        into = chunks[(rank - 2 - step) % size]
        got = scratch(into, into.numel())
        peers.wait(peers.exchange(chunks[(rank - 1 - step) % size], (rank + 1) % size, got, (rank - 1) % size))
        how.combine(into, got)
    how.finish(chunks[rank], size)


def all_gather_chunks(peers: Peers, chunks: Sequence[torch.Tensor]) -> None:
    """Chunk `rank` of each rank is copied to all others."""
    rank = peers.rank
    size = peers.size
    for step in range(size - 1):
        out = chunks[(rank - step) % size]
        into = chunks[(rank - step - 1) % size]
        peers.wait(peers.exchange(out, (rank + 1) % size, into, (rank - 1) % size))


def ring_reduce_scatter(peers: Peers, out: torch.Tensor, tensor: torch.Tensor, operation: str = "sum") -> None:
    """Write chunk `rank` of the reduced `tensor` to `out`. `tensor` is not changed."""
    how = reduction(operation, tensor)
    _require_chunk("out", out, "tensor", tensor, peers)
    import torch

    with torch.no_grad():
        chunks = tensor.detach().clone(memory_format=torch.contiguous_format).view(-1).tensor_split(peers.size)
        reduce_scatter_chunks(peers, chunks, how)
        out.detach().copy_(chunks[peers.rank].view(out.shape))


def ring_all_gather(peers: Peers, out: torch.Tensor, tensor: torch.Tensor) -> None:
    """Write the tensors of all ranks to `out`, one after another: each is chunk `rank` of it."""
    _require_chunk("tensor", tensor, "out", out, peers)
    with flat(out) as buffer:
        chunks = buffer.tensor_split(peers.size)
        chunks[peers.rank].copy_(tensor.detach().reshape(-1))
        all_gather_chunks(peers, chunks)


def ring_all_reduce(peers: Peers, tensor: torch.Tensor, operation: str = "sum") -> None:
    """Replace `tensor` on each rank by the reduction over all ranks: a reduce-scatter, then an all-gather."""
    how = reduction(operation, tensor)
    with flat(tensor) as buffer:
        chunks = buffer.tensor_split(peers.size)
        reduce_scatter_chunks(peers, chunks, how)
        all_gather_chunks(peers, chunks)


def hierarchical_all_reduce(peers: Peers, tensor: torch.Tensor, per_node: int, operation: str = "sum") -> None:
    """All-reduce in three phases: reduce-scatter inside each node, all-reduce of each shard across nodes by the ranks
    of the same place, all-gather inside. Between nodes a rank sends 1/`per_node` of the bytes that a flat ring would
    send.

    Ranks r with the same r // per_node form a node. The phases are rings. HSDP reduces gradients in the same way, on a
    DeviceMesh of (nodes, per_node) with a reduce-scatter in the inner dimension first.
    """
    _require_nodes(peers.size, per_node)
    how, (node, place) = reduction(operation, tensor), divmod(peers.rank, per_node)
    inside = Subset(peers, range(node * per_node, (node + 1) * per_node))
    across = Subset(peers, range(place, peers.size, per_node))
    total = Reduction("sum" if operation == "avg" else operation, tensor.dtype)
    with flat(tensor) as buffer:
        shards = buffer.tensor_split(per_node)
        reduce_scatter_chunks(inside, shards, total)
        chunks = shards[place].tensor_split(across.size)
        reduce_scatter_chunks(across, chunks, total)
        all_gather_chunks(across, chunks)
        how.finish(shards[place], peers.size)
        all_gather_chunks(inside, shards)


def ring_reduce_scatter_cost(elements: int, element_size: int, ranks: int, link: Link) -> Cost:
    """(N − 1)(α + ⌈n/N⌉·e/β) seconds for n elements of e bytes before the reduction, any n.

    A chunk is passed on in the step after it has arrived, so each makes its way around at its own pace, and the longest
    is the last: no rank waits for more than ⌈n/N⌉ elements in any step. A rank sends every chunk but its own.
    """
    require_sizes(elements, element_size, ranks)
    longest = chunk_length(elements, ranks, 0) * element_size
    return Cost(
        tuple((elements - chunk_length(elements, ranks, rank)) * element_size for rank in range(ranks)),
        (ranks - 1,) * ranks,
        (ranks - 1) * (link.seconds(longest) + link.reduce_seconds * longest),
    )


def ring_all_gather_cost(elements: int, element_size: int, ranks: int, link: Link) -> Cost:
    """Cost of a ring all-gather: (N − 1)(α + ⌈n/N⌉·e/β) seconds for n elements of e bytes after gathering. A rank sends
    every chunk except that of the next rank."""
    require_sizes(elements, element_size, ranks)
    return Cost(
        tuple((elements - chunk_length(elements, ranks, rank + 1)) * element_size for rank in range(ranks)),
        (ranks - 1,) * ranks,
        (ranks - 1) * link.seconds(chunk_length(elements, ranks, 0) * element_size),
    )


def ring_all_reduce_cost(elements: int, element_size: int, ranks: int, link: Link) -> Cost:
    """Cost of a ring all-reduce: 2(N − 1)(α + ⌈n/N⌉·e/β) seconds. This also holds for n < N, when the largest chunk has
    one element, and for n = 0."""
    scatter = ring_reduce_scatter_cost(elements, element_size, ranks, link)
    return scatter + ring_all_gather_cost(elements, element_size, ranks, link)


def hierarchical_all_reduce_cost(
    elements: int, element_size: int, nodes: int, per_node: int, inside: Link, across: Link
) -> Cost:
    """Cost of a hierarchical all-reduce: 2(P − 1)(α₁ + ⌈n/P⌉·e/β₁) + 2(L − 1)(α₂ + ⌈n/PL⌉·e/β₂) seconds for P ranks in
    each of L nodes.

    This is exact if each rank has its own way out and its own way in, inside the node and between nodes (one NIC per
    device), because a rank sends one message at a time, to one rank. The largest shard is that of place 0, and its
    largest chunk is at node 0. Because ⌈⌈n/P⌉/L⌉ = ⌈n/PL⌉, that chunk is on the critical path of all three phases.
    """
    require_sizes(elements, element_size, nodes)
    require_sizes(elements, element_size, per_node)
    scatter = ring_reduce_scatter_cost(elements, element_size, per_node, inside)
    gather = ring_all_gather_cost(elements, element_size, per_node, inside)
    shards = [
        ring_all_reduce_cost(chunk_length(elements, per_node, place), element_size, nodes, across)
        for place in range(per_node)
    ]
    return Cost(
        tuple(
            scatter.bytes[place] + shards[place].bytes[node] + gather.bytes[place]
            for node in range(nodes)
            for place in range(per_node)
        ),
        (2 * (per_node - 1) + 2 * (nodes - 1),) * (nodes * per_node),
        scatter.seconds + shards[0].seconds + gather.seconds,
    )


def _require_chunk(part: str, chunk: torch.Tensor, whole: str, tensor: torch.Tensor, peers: Peers) -> None:
    expected = chunk_length(tensor.numel(), peers.size, peers.rank)
    if chunk.numel() != expected or chunk.dtype != tensor.dtype:
        raise ValueError(
            f"{part} has {chunk.numel()} elements of {chunk.dtype}: expected {expected} of {tensor.dtype}, which is "
            f"{whole}.flatten().tensor_split({peers.size})[{peers.rank}]"
        )


def _require_nodes(ranks: int, per_node: int) -> None:
    if per_node < 1 or ranks % per_node:
        raise ValueError(f"per_node = {per_node} for {ranks} ranks: expected a number that divides them")
