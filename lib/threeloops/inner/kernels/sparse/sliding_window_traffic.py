"""How much sliding-window attention must move and compute, and how much its kernels ask for, exactly.

A tile of queries visits a tile of keys if any of the keys is visible to any of the queries, and no other tile.
`visited_tiles` counts them for any sizes. Where sequence and window are whole numbers of square tiles, n and w of them,
that makes (w + 1)·n − w(w + 1)/2: each row of tiles visits w + 1, less those that would lie before the first key.
"""

import torch
from triton import cdiv

from threeloops.inner.costs import Work, require_positive
from threeloops.inner.kernels.attention.sizes import AttentionSizes
from threeloops.inner.kernels.launching import TiledTraffic
from threeloops.inner.kernels.sparse.tiles import shipped


def visible_pairs(length: int, window: int, sinks: int = 0) -> int:
    """(query, key) that attend: Σ min(i + 1, window), and the sinks that have left the window of later queries."""
    window = min(window, length)
    in_window = length * window - window * (window - 1) // 2
    outside, sinks = length - window, min(sinks, length - window)
    return in_window + outside * sinks - sinks * (sinks - 1) // 2


def visited_tiles(length: int, window: int, block_m: int, block_n: int, sinks: int = 0) -> tuple[int, int]:
    """Tiles of block_n keys that all tiles of block_m queries visit together, and the keys in them."""
    tiles = keys = 0
    for first_query in range(0, length, block_m):
        first_tile = max(first_query - window + 1, 0) // block_n
        end_tile = cdiv(min(first_query + block_m, length), block_n)
        sink_tiles = min(cdiv(sinks, block_n), first_tile)
        tiles += sink_tiles + end_tile - first_tile
        keys += sink_tiles * block_n + min(end_tile * block_n, length) - first_tile * block_n
    return tiles, keys


def visited_query_tiles(length: int, window: int, block_m: int, block_n: int, sinks: int = 0) -> tuple[int, int]:
    """The same from the side of the keys: tiles of block_m queries that all tiles of block_n keys visit, and their
    queries."""
    tiles = queries = 0
    for first_key in range(0, length, block_n):
        last_query = (length if first_key < sinks else min(first_key + block_n - 1 + window, length)) - 1
        first_tile, end_tile = first_key // block_m, last_query // block_m + 1
        tiles += end_tile - first_tile
        queries += min(end_tile * block_m, length) - first_tile * block_m
    return tiles, queries


def forward_traffic(sizes: AttentionSizes, dtype: torch.dtype, window: int, sinks: int = 0) -> TiledTraffic:
    """q once, k and v tile by tile; the output and the log-sum-exp once."""
    chosen, row_bytes = shipped(dtype, sizes.head_dim).forward, sizes.head_dim * dtype.itemsize
    tiles, keys = visited_tiles(sizes.queries, window, chosen.rows, chosen.keys, sinks)
    heads = sizes.batch * sizes.heads
    return TiledTraffic(
        tiles=heads * tiles,
        loaded=heads * (sizes.queries + 2 * keys) * row_bytes,
        stored=heads * sizes.queries * (row_bytes + 4),
        dot_flops=heads * tiles * 4 * chosen.rows * chosen.keys * sizes.head_dim,
    )


def backward_traffic(
    sizes: AttentionSizes, dtype: torch.dtype, window: int, sinks: int = 0
) -> tuple[TiledTraffic, TiledTraffic]:
    """Of the kernel for q, which also reads the output and leaves delta, and of the kernel for k and v."""
    heads, kv_heads, length = sizes.batch * sizes.heads, sizes.batch * sizes.kv_heads, sizes.queries
    chosen, row_bytes = shipped(dtype, sizes.head_dim), sizes.head_dim * dtype.itemsize
    tiles, keys = visited_tiles(length, window, chosen.grad_q.rows, chosen.grad_q.keys, sinks)
    grad_q = TiledTraffic(
        tiles=heads * tiles,
        loaded=heads * ((3 * length + 2 * keys) * row_bytes + 4 * length),
        stored=heads * length * (row_bytes + 4),
        dot_flops=heads * tiles * 6 * chosen.grad_q.rows * chosen.grad_q.keys * sizes.head_dim,
    )
    tiles, queries = visited_query_tiles(length, window, chosen.grad_k_v.rows, chosen.grad_k_v.keys, sinks)
    grad_k_v = TiledTraffic(
        tiles=heads * tiles,
        loaded=kv_heads * 2 * length * row_bytes + heads * queries * (2 * row_bytes + 8),
        stored=kv_heads * 2 * length * row_bytes,
        dot_flops=heads * tiles * 8 * chosen.grad_k_v.rows * chosen.grad_k_v.keys * sizes.head_dim,
    )
    return grad_q, grad_k_v


def cost(
    batch: int,
    heads: int,
    length: int,
    head_dim: int,
    window: int,
    bytes_per_element: float = 2,
    *,
    kv_heads: int | None = None,
    sinks: int = 0,
) -> Work:
    """The least that it takes: q, k and v read once, the output and a float32 log-sum-exp written. FLOPs as in
    `costs.attention`, 4·head_dim + 6 a pair, of visible pairs only."""
    kv_heads = heads if kv_heads is None else kv_heads
    require_positive(batch=batch, heads=heads, length=length, head_dim=head_dim, kv_heads=kv_heads, window=window)
    elements = 2 * batch * (heads + kv_heads) * length * head_dim
    pairs = batch * heads * visible_pairs(length, window, sinks)
    return Work(elements * bytes_per_element + 4 * batch * heads * length, (4 * head_dim + 6) * pairs)


def backward_cost(
    batch: int,
    heads: int,
    length: int,
    head_dim: int,
    window: int,
    bytes_per_element: float = 2,
    *,
    kv_heads: int | None = None,
    sinks: int = 0,
) -> Work:
    """The least of the two backward kernels. The first reads q, k, v, the output, its gradient and the log-sum-exp and
    writes dq and delta; the second reads q, k, v, the gradient, the log-sum-exp and delta and writes dk and dv. FLOPs
    of a visible pair: (6 + 8)·head_dim, and five a kernel for the exponential and what surrounds it."""
    kv_heads = heads if kv_heads is None else kv_heads
    require_positive(batch=batch, heads=heads, length=length, head_dim=head_dim, kv_heads=kv_heads, window=window)
    elements = 6 * batch * (heads + kv_heads) * length * head_dim
    pairs = batch * heads * visible_pairs(length, window, sinks)
    return Work(elements * bytes_per_element + 16 * batch * heads * length, (14 * head_dim + 10) * pairs)
