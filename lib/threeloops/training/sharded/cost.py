"""Memory and messages of each stage of ZeRO on a rank: Rajbhandari et al. 2020, figure 1, table 1 and section 7.

For 16-bit training with Adam, bytes per parameter on N ranks, and sends of P parameters' bytes per rank and step:

| stage     | parameters | gradients | masters and states | N = 64 | sent            |
|-----------|------------|-----------|--------------------|--------|-----------------|
| 0 (DDP)   | 2          | 2         | 12                 | 16     | 2 · (N − 1)/N·P |
| 1         | 2          | 2         | 12/N               | 4.19   | 2 · (N − 1)/N·P |
| 2         | 2          | 2/N       | 12/N               | 2.22   | 2 · (N − 1)/N·P |
| 3 (FSDP)  | 2/N        | 2/N       | 12/N               | 0.25   | 3 · (N − 1)/N·P |

Without float32 masters the 12 become 8. Sizes are elements of each flat tensor, a bucket or unit, whose chunks are
padded to ⌈size/N⌉.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from threeloops.training.collectives.cost import chunk_length

__all__ = ["ModelStates", "bytes_sent", "model_states"]


@dataclass(frozen=True)
class ModelStates:
    """Bytes on the rank that holds the most of them, which is rank 0."""

    parameters: int
    gradients: int
    masters: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.masters + self.optimizer


def model_states(
    sizes: Sequence[int],
    ranks: int,
    stage: int,
    *,
    parameter_bytes: int = 2,
    gradient_bytes: int = 2,
    master_bytes: int = 4,
    optimizer_bytes: int = 8,
) -> ModelStates:
    """Model states between backward and step, when all of them are there.

    Args:
        master_bytes, optimizer_bytes: per element; 0 without masters, and for plain SGD. Our `FSDP` keeps a 16-bit
            parameter as its float32 master alone, and its gradient in float32: 0 + 4 + 4 + 8, which is 16 as well.
    """
    _require(sizes, ranks, stage)
    whole = sum(sizes)
    shard = sum(-(-size // ranks) for size in sizes)
    padded = shard * ranks
    return ModelStates(
        parameter_bytes * (shard if stage == 3 else padded if stage else whole),
        gradient_bytes * (shard if stage >= 2 else padded if stage else whole),
        master_bytes * (shard if stage else whole),
        optimizer_bytes * (shard if stage else whole),
    )


def bytes_sent(
    sizes: Sequence[int],
    ranks: int,
    stage: int,
    *,
    parameter_bytes: int = 2,
    gradient_bytes: int = 2,
    gathered_once: Sequence[int] = (),
    replicas: int = 1,
) -> list[int]:
    """Return the bytes that each rank sends in one step of one backward, on rings, without norms and buffers.

    In a reduce-scatter, and in an all-gather, each rank sends N − 1 of the N chunks of a flat tensor to the next rank.
    The rings of `DDP` cut without padding, so there the ranks differ if a size is not a multiple of N.

    Args:
        gathered_once: for stage 3, sizes of the flat tensors that are gathered once instead of twice: the root, and all
            units with `reshard_after_forward=False`.
        replicas: for stage 3, the number of groups of `ranks` (hybrid sharding). The result has the ranks of the first
            group first.
    """
    _require([*sizes, *gathered_once], ranks, stage)
    if replicas < 1 or ((gathered_once or replicas > 1) and stage != 3):
        raise ValueError(
            f"gathered_once and replicas = {replicas} in stage {stage}: expected 1 or more, in stage 3 alone"
        )
    if stage == 0:
        return [sum(_all_reduce(size, ranks, rank) for size in sizes) * gradient_bytes for rank in range(ranks)]
    chunks = [-(-size // ranks) for size in sizes]
    once_chunks = [-(-size // ranks) for size in gathered_once]
    gathered = sum(chunks) * (2 if stage == 3 else 1) + sum(once_chunks)
    inside = (ranks - 1) * (gathered * parameter_bytes + (sum(chunks) + sum(once_chunks)) * gradient_bytes)
    return [
        inside + sum(_all_reduce(chunk, replicas, replica) for chunk in [*chunks, *once_chunks]) * gradient_bytes
        for replica in range(replicas)
        for _ in range(ranks)
    ]


def _all_reduce(elements: int, ranks: int, rank: int) -> int:
    """Return the elements that a rank sends: all chunks except its own, and then all except that of the next rank."""
    return 2 * elements - chunk_length(elements, ranks, rank) - chunk_length(elements, ranks, rank + 1)


def _require(sizes: Sequence[int], ranks: int, stage: int) -> None:
    if stage not in (0, 1, 2, 3) or ranks < 1 or min(sizes, default=0) < 0:
        raise ValueError(
            f"stage = {stage} on {ranks} ranks with sizes {list(sizes)}: expected stage 0 (DDP), 1, 2 or 3, at least 1 "
            "rank, and no negative size"
        )
