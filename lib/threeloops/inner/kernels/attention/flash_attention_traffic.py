"""What the attention kernels ask of the memory system, exactly: closed forms in the lengths and the tile sizes.

`cost` says what must move between memory and chip once. Tiles ask for more: forwards each of the ⌈n / BLOCK_M⌉ query
tiles of n queries asks for all keys that it sees, so K and V of m keys are asked for ⌈n / BLOCK_M⌉ times: with n = m =
N that is N² · head_dim / BLOCK_M elements each. Under a causal mask tile i sees the keys up to its last query, rounded
up to a whole tile: about half. Dots are counted whole, masked halves and padded edges included.
"""

from dataclasses import dataclass

import triton

from threeloops.inner.costs import Work, visible_pairs

LSE_BYTES = 4


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
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    head_dim: int,
    bytes_per_element: int = 2,
    *,
    block_m: int,
    block_n: int,
    causal: bool = False,
) -> TileTraffic:
    """Forward. Each query head asks for its keys by itself, so the number of key heads does not matter."""
    key_rows, key_tiles = rows_and_tiles_of_keys(queries, keys, block_m, block_n, causal)
    one_row = batch * heads * head_dim * bytes_per_element
    return TileTraffic(
        q=queries * one_row,
        k=key_rows * one_row,
        v=key_rows * one_row,
        output=queries * one_row,
        lse=batch * heads * queries * LSE_BYTES,
        dot_flops=2 * 2 * batch * heads * key_tiles * block_m * block_n * head_dim,
    )


@dataclass(frozen=True)
class BackwardTraffic:
    """Requested bytes of the three backward kernels together, and the FLOPs of their dots."""

    loaded: int
    stored: int
    dot_flops: int


def backward_tile_traffic(
    batch: int,
    heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    head_dim: int,
    bytes_per_element: int = 2,
    *,
    key_blocks: tuple[int, int],
    query_blocks: tuple[int, int],
    rows_at_once: int,
    causal: bool = False,
) -> BackwardTraffic:
    """Backward, with (BLOCK_M, BLOCK_N) of the kernel for dK and dV, of the one for dQ, and the rows of the first."""
    query_row, key_row = heads * head_dim * bytes_per_element, kv_heads * head_dim * bytes_per_element
    padded = triton.cdiv(queries, rows_at_once) * rows_at_once

    block_m, block_n = key_blocks
    query_rows, query_tiles = rows_and_tiles_of_queries(queries, keys, block_m, block_n, causal)
    for_keys = 2 * keys * key_row + 2 * query_rows * query_row + 2 * query_tiles * block_m * heads * LSE_BYTES
    key_dots = 4 * 2 * heads * query_tiles * block_m * block_n * head_dim

    block_m, block_n = query_blocks
    key_rows, key_tiles = rows_and_tiles_of_keys(queries, keys, block_m, block_n, causal)
    own_rows = triton.cdiv(queries, block_m) * block_m
    for_queries = 2 * queries * query_row + 2 * key_rows * query_row + 2 * own_rows * heads * LSE_BYTES
    query_dots = 3 * 2 * heads * key_tiles * block_m * block_n * head_dim

    prepared = 2 * queries * query_row + queries * heads * LSE_BYTES
    stored = 2 * padded * heads * LSE_BYTES + 2 * keys * key_row + queries * query_row
    return BackwardTraffic(
        loaded=batch * (prepared + for_keys + for_queries),
        stored=batch * stored,
        dot_flops=batch * (key_dots + query_dots),
    )


def rows_and_tiles_of_keys(queries: int, keys: int, block_m: int, block_n: int, causal: bool) -> tuple[int, int]:
    """Rows of K, and tiles of keys, that all query tiles of one head visit together."""
    rows = tiles = 0
    for first_query in range(0, queries, block_m):
        seen = min(max(first_query + block_m + keys - queries, 0), keys) if causal else keys
        visited = triton.cdiv(seen, block_n)
        tiles += visited
        rows += min(visited * block_n, keys)
    return rows, tiles


def rows_and_tiles_of_queries(queries: int, keys: int, block_m: int, block_n: int, causal: bool) -> tuple[int, int]:
    """Rows of Q, and tiles of queries, that all key tiles visit together for one query head."""
    rows = tiles = 0
    for first_key in range(0, keys, block_n):
        first_query = max(first_key - (keys - queries), 0) // block_m * block_m if causal else 0
        visited = max(queries - first_query, 0)
        tiles += triton.cdiv(visited, block_m)
        rows += visited
    return rows, tiles


def backward_cost(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    head_dim: int,
    bytes_per_element: float = 2,
    *,
    kv_heads: int | None = None,
    causal: bool = False,
) -> Work:
    """The least that the three backward kernels take, each reading what it needs once.

    The first reads O, dO and the log-sum-exp and writes two numbers a row; each of the others reads Q, K, V, dO and
    those two; dQ, dK and dV are written. FLOPs of the pairs that attend: seven products of 2·head_dim, as S and dP are
    computed by both kernels, and 5 for scale, softmax and its derivative in each.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    elements = batch * head_dim * (7 * heads * queries + 6 * kv_heads * keys)
    row_bytes = (1 + 2 + 2 + 2) * LSE_BYTES * batch * heads * queries
    pairs = batch * heads * visible_pairs(queries, keys, causal)
    return Work(elements * bytes_per_element + row_bytes, (14 * head_dim + 10) * pairs)
