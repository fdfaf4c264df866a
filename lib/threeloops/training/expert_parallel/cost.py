"""Messages of the all-to-alls of a mixture of experts, in closed form."""

from collections.abc import Sequence

from threeloops.training.expert_parallel.capacity import Load

__all__ = ["all_to_all_bytes", "balanced_all_to_all_bytes", "counts_bytes"]


def all_to_all_bytes(loads: Sequence[Load], width: int, element_size: int = 4) -> list[list[int]]:
    """Bytes from each rank (row) to each other (column) in the dispatch, given each rank's own load: kept rows · width.

    The combine sends the same back, so its matrix is this one transposed; backward sends each once more, in the
    other direction.
    """
    ranks = len(loads)
    return [
        [rows * width * element_size * (source != target) for target, rows in enumerate(load.per_rank(ranks))]
        for source, load in enumerate(loads)
    ]


def balanced_all_to_all_bytes(tokens: int, width: int, k: int, ranks: int, element_size: int = 4) -> float:
    """Return the bytes per rank of one such exchange, if each rank's `tokens` spread evenly and none is dropped: (n −
    1)/n · k · tokens · width · bytes. A step has four of them: dispatch and combine, forward and backward."""
    return (ranks - 1) / ranks * k * tokens * width * element_size


def counts_bytes(experts: int, ranks: int) -> int:
    """Bytes per rank of the exchange of counts beforehand: an int64 for each expert of another rank."""
    return (ranks - 1) * experts // ranks * 8
