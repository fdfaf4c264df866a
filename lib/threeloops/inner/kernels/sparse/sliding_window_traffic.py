"""The least that sliding-window attention must move and compute, and what its forward kernel asks for, exactly.

A tile of queries visits a tile of keys if any of the keys is visible to any of the queries, and no other tile.
`_visited_tiles` counts them. Where sequence and window are whole numbers of square tiles, n and w of them,
that makes (w + 1)·n − w(w + 1)/2: each row of tiles visits w + 1, less those that would lie before the first key.
"""

from dataclasses import asdict

import torch
from triton import cdiv

from threeloops.inner.costs import Work, require_positive
from threeloops.inner.kernels.attention.sizes import AttentionSizes, least_forward, pairs_in_window
from threeloops.inner.kernels.launching import TiledTraffic
from threeloops.inner.kernels.sparse.tiles import shipped

__all__ = ["backward_cost", "cost"]


def _visible_pairs(length: int, window: int, sinks: int = 0) -> int:
    """Pairs of query and key that attend: those in the window, and sinks that have left the window of later queries."""
    outside = max(length - window, 0)
    sinks = min(sinks, outside)
    return pairs_in_window(length, window) + outside * sinks - sinks * (sinks - 1) // 2


def _visited_tiles(length: int, window: int, block_m: int, block_n: int, sinks: int = 0) -> tuple[int, int]:
    """Tiles of block_n keys that all tiles of block_m queries visit together, and the keys in them."""
    tiles = keys = 0
    for first_query in range(0, length, block_m):
        first_tile = max(first_query - window + 1, 0) // block_n
        end_tile = cdiv(min(first_query + block_m, length), block_n)
        sink_tiles = min(cdiv(sinks, block_n), first_tile)
        tiles += sink_tiles + end_tile - first_tile
        keys += sink_tiles * block_n + min(end_tile * block_n, length) - first_tile * block_n
    return tiles, keys


def _forward_traffic(sizes: AttentionSizes, dtype: torch.dtype, window: int, sinks: int = 0) -> TiledTraffic:
    """q once, k and v tile by tile; the output and the log-sum-exp once."""
    chosen, row_bytes = shipped(dtype, sizes.head_dim).forward, sizes.head_dim * dtype.itemsize
    tiles, keys = _visited_tiles(sizes.queries, window, chosen.rows, chosen.keys, sinks)
    heads = sizes.batch * sizes.heads
    return TiledTraffic(
        tiles=heads * tiles,
        loaded=heads * (sizes.queries + 2 * keys) * row_bytes,
        stored=heads * sizes.queries * (row_bytes + 4),
        dot_flops=heads * tiles * 4 * chosen.rows * chosen.keys * sizes.head_dim,
    )


def cost(sizes: AttentionSizes, window: int, bytes_per_element: float = 2, *, sinks: int = 0) -> Work:
    """The least that the forward pass takes: `least_forward` of visible pairs only."""
    require_positive(**asdict(sizes), window=window)
    return least_forward(sizes, _visible_pairs(sizes.queries, window, sinks), bytes_per_element)


def backward_cost(sizes: AttentionSizes, window: int, bytes_per_element: float = 2, *, sinks: int = 0) -> Work:
    """The least of the two backward kernels. The first reads q, k, v, the output, its gradient and the log-sum-exp and
    writes dq and delta; the second reads q, k, v, the gradient, the log-sum-exp and delta and writes dk and dv. FLOPs
    of a visible pair: (6 + 8)·head_dim, and five per kernel for the exponential and what surrounds it."""
    require_positive(**asdict(sizes), window=window)
    elements = 6 * (sizes.rows + sizes.kv_rows) * sizes.head_dim
    pairs = sizes.batch * sizes.heads * _visible_pairs(sizes.queries, window, sinks)
    return Work(elements * bytes_per_element + 4 * 4 * sizes.rows, (14 * sizes.head_dim + 10) * pairs)
