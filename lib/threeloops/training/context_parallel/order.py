"""Orders of the tokens of a sequence on ranks, and the causal attention that each order gives a rank to compute.

A query sees the keys up to its own position. With contiguous parts the first rank is done after one step of the ring,
while the last one computes in every step, and everybody waits for it. Zig-zag cuts the sequence into 2n chunks and
gives rank r chunks r and 2n − 1 − r, so each rank has equal work in each step. Megatron and Llama 3 use it (Grattafiori
et al. 2024, section 3.3.2). Striped attention (Brandon et al. 2023) balances by dealing out single tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Order", "chunks_of", "token_positions", "visible_pairs"]

Order = Literal["contiguous", "zigzag"]


def chunks_of(rank: int, ranks: int, order: Order) -> tuple[int, ...]:
    """Numbers of this rank's chunks, in rising order: one of n, or two of 2n."""
    if order not in ("contiguous", "zigzag"):
        raise ValueError(f"order = {order!r}: expected 'contiguous' or 'zigzag'")
    return (rank,) if order == "contiguous" else (rank, 2 * ranks - 1 - rank)


def token_positions(tokens: int, rank: int, ranks: int, order: Order = "zigzag") -> Tensor:
    """Positions of this rank's tokens in a sequence of `tokens`, in the order in which the rank holds them.

    Cut inputs and targets with it, `tokens[:, positions]`, and look up rotary positions.
    """
    import torch

    length = _chunk_length(tokens, ranks, order)
    return torch.cat([torch.arange(c * length, (c + 1) * length) for c in chunks_of(rank, ranks, order)])


def visible_pairs(tokens: int, ranks: int, order: Order = "zigzag") -> tuple[tuple[int, ...], ...]:
    """Pairs of a query and a key that it sees, for each rank (row) and step of the ring (column).

    In step s rank r has the keys of rank r − s. With c = tokens / n contiguous: c (c + 1) / 2 in step 0, then c² while
    r ≥ s, and nothing after. With h = tokens / 2n zig-zag: 2h² + h in step 0, and 2h² in each of the others.
    """
    length = _chunk_length(tokens, ranks, order)
    if order == "zigzag":
        return ((2 * length**2 + length, *[2 * length**2] * (ranks - 1)),) * ranks
    own = length * (length + 1) // 2
    return tuple((own, *[length**2 * (rank >= step) for step in range(1, ranks)]) for rank in range(ranks))


def _chunk_length(tokens: int, ranks: int, order: Order) -> int:
    count = ranks * len(chunks_of(0, ranks, order))
    if tokens % count:
        raise ValueError(
            f"{tokens} tokens cannot be cut into {count} equal chunks, which {order} order on {ranks} ranks needs: pad "
            f"the sequence to a multiple of {count}"
        )
    return tokens // count
