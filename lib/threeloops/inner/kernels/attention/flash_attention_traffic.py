"""What FlashAttention asks of the memory system, exactly, and the least that its backward pass takes.

`cost` says what must move between memory and chip once. Tiles ask for more: each of the ⌈n / BLOCK_M⌉ query tiles of n
queries asks for all keys that it sees, so K and V of m keys are asked for ⌈n / BLOCK_M⌉ times: with n = m = N that is
N² · head_dim / BLOCK_M elements each. Under a causal mask tile i sees the keys up to its last query, rounded up to a
whole tile: about half. Dots are counted whole, including masked halves and padded edges.
"""

from dataclasses import dataclass

import triton

from threeloops.inner.costs import Work, visible_pairs
from threeloops.inner.kernels.attention.sizes import AttentionSizes

__all__ = ["TileTraffic", "backward_cost", "tile_traffic"]

_LSE_BYTES = 4


@dataclass(frozen=True)
class TileTraffic:
    """Requested bytes of the forward kernel by argument, and the FLOPs of its dots."""

    q: int
    k: int
    v: int
    output: int
    lse: int
    dot_flops: int

    @property
    def loaded(self) -> int:
        return self.q + self.k + self.v

    @property
    def stored(self) -> int:
        return self.output + self.lse


def tile_traffic(
    sizes: AttentionSizes, bytes_per_element: int = 2, *, block_m: int, block_n: int, causal: bool = False
) -> TileTraffic:
    """Forward. Each query head asks for its keys by itself, so the number of key heads does not matter."""
    key_rows = key_tiles = 0
    for first_query in range(0, sizes.queries, block_m):
        last_seen = first_query + block_m + sizes.keys - sizes.queries
        seen = min(max(last_seen, 0), sizes.keys) if causal else sizes.keys
        visited = triton.cdiv(seen, block_n)
        key_tiles += visited
        key_rows += min(visited * block_n, sizes.keys)
    heads = sizes.batch * sizes.heads
    one_row = heads * sizes.head_dim * bytes_per_element
    return TileTraffic(
        q=sizes.queries * one_row,
        k=key_rows * one_row,
        v=key_rows * one_row,
        output=sizes.queries * one_row,
        lse=heads * sizes.queries * _LSE_BYTES,
        dot_flops=2 * 2 * heads * key_tiles * block_m * block_n * sizes.head_dim,
    )


def backward_cost(sizes: AttentionSizes, bytes_per_element: float = 2, *, causal: bool = False) -> Work:
    """The least that the three backward kernels take, each reading what it needs once.

    The first reads O, dO and the log-sum-exp and writes two numbers per row; each of the others reads Q, K, V, dO and
    those two; dQ, dK and dV are written. FLOPs of a pair that attends: seven products of 2·head_dim, since both kernels
    compute S and dP, and 5 in each of them for scale, softmax and its derivative.
    """
    elements = (7 * sizes.rows + 6 * sizes.kv_rows) * sizes.head_dim
    per_row = (1 + 2 + 2 + 2) * _LSE_BYTES
    pairs = sizes.batch * sizes.heads * visible_pairs(sizes.queries, sizes.keys, causal)
    return Work(elements * bytes_per_element + per_row * sizes.rows, (14 * sizes.head_dim + 10) * pairs)
