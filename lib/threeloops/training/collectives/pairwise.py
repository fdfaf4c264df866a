"""All-to-all in pairs: in step k each rank sends to the rank k places after it and receives from the one k places
before it.

MPICH's algorithm for long messages (Thakur, Rabenseifner, Gropp 2005, section 4.4). Each block goes straight to its
target, so a rank sends exactly the blocks of the others, and never more than one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from threeloops.training.collectives.cost import Cost, Link, require_sizes
from threeloops.training.collectives.peers import Peers

if TYPE_CHECKING:
    import torch

__all__ = ["all_to_all", "all_to_all_cost"]


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
