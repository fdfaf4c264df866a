"""What attention kernels ask for, derived from their tiles: the meter must find the same, to the byte and to the FLOP.

A row that exists counts each time a program loads it. Products are counted whole, including what a mask hides and the
zeros that pad a tile past the end. Each function takes the tiles that are shipped for the current target.
"""

from typing import NamedTuple

import torch
from threeloops.inner.kernels.attention.flash_attention_backward import _ROWS
from threeloops.inner.kernels.attention.simplicial_problem import Problem
from threeloops.inner.kernels.attention.sizes import AttentionSizes, pairs_in_window
from threeloops.inner.kernels.attention.sizes import shipped as flash_tiles
from threeloops.inner.kernels.launching import Tiles
from threeloops.inner.kernels.sparse.block_mask import BlockMask
from threeloops.inner.kernels.sparse.tiles import shipped as sparse_tiles
from triton import cdiv

LSE, DELTA, INDEX = 4, 4, 4  # bytes of one


class TiledTraffic(NamedTuple):
    """Of one launch: bytes requested, and FLOPs of the tiles' matrix products."""

    loaded: int
    stored: int
    dot_flops: int


class ForwardTraffic(NamedTuple):
    """Requested bytes of FlashAttention's forward kernel by argument, and the FLOPs of its dots."""

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


def flash_attention(
    sizes: AttentionSizes, bytes_per_element: int = 2, *, block_m: int, block_n: int, causal: bool = False
) -> ForwardTraffic:
    """The output. Each query head asks for its keys by itself, so the number of key heads does not matter."""
    key_rows = key_tiles = 0
    for first_query in range(0, sizes.queries, block_m):
        last_seen = first_query + block_m + sizes.keys - sizes.queries
        seen = min(max(last_seen, 0), sizes.keys) if causal else sizes.keys
        visited = cdiv(seen, block_n)
        key_tiles += visited
        key_rows += min(visited * block_n, sizes.keys)
    heads = sizes.batch * sizes.heads
    one_row = heads * sizes.head_dim * bytes_per_element
    return ForwardTraffic(
        q=sizes.queries * one_row,
        k=key_rows * one_row,
        v=key_rows * one_row,
        output=sizes.queries * one_row,
        lse=heads * sizes.queries * LSE,
        dot_flops=2 * 2 * heads * key_tiles * block_m * block_n * sizes.head_dim,
    )


def flash_attention_backward(sizes: AttentionSizes, dtype: torch.dtype, *, causal: bool) -> TiledTraffic:
    """The three kernels together: rows prepared, the gradients of k and v, the gradient of q."""
    tiles, heads, queries, keys = flash_tiles(dtype, sizes.head_dim), sizes.heads, sizes.queries, sizes.keys
    query_row, key_row = (n * sizes.head_dim * dtype.itemsize for n in (heads, sizes.kv_heads))
    padded = cdiv(queries, _ROWS) * _ROWS

    rows, block = tiles.grad_k_v.rows, tiles.grad_k_v.keys
    query_rows = query_tiles = 0
    for first_key in range(0, keys, block):
        first_query = max(first_key - (keys - queries), 0) // rows * rows if causal else 0
        visited = max(queries - first_query, 0)
        query_tiles, query_rows = query_tiles + cdiv(visited, rows), query_rows + visited
    for_keys = 2 * keys * key_row + 2 * query_rows * query_row + (LSE + DELTA) * query_tiles * rows * heads
    key_dots = 4 * 2 * heads * query_tiles * rows * block * sizes.head_dim

    rows, block = tiles.grad_q.rows, tiles.grad_q.keys
    key_rows = key_tiles = 0
    for first_query in range(0, queries, rows):
        seen = min(max(first_query + rows + keys - queries, 0), keys) if causal else keys
        key_tiles, key_rows = key_tiles + cdiv(seen, block), key_rows + min(cdiv(seen, block) * block, keys)
    own_rows = cdiv(queries, rows) * rows
    for_queries = 2 * queries * query_row + 2 * key_rows * query_row + (LSE + DELTA) * own_rows * heads
    query_dots = 3 * 2 * heads * key_tiles * rows * block * sizes.head_dim

    prepared = 2 * queries * query_row + queries * heads * LSE
    stored = (LSE + DELTA) * padded * heads + 2 * keys * key_row + queries * query_row
    return TiledTraffic(
        sizes.batch * (prepared + for_keys + for_queries), sizes.batch * stored, sizes.batch * (key_dots + query_dots)
    )


def window_key_tiles(length: int, window: int, block_m: int, block_n: int, sinks: int = 0) -> tuple[int, int]:
    """Tiles of block_n keys that all tiles of block_m queries visit together, and the keys in them."""
    tiles = keys = 0
    for first_query in range(0, length, block_m):
        first_tile = max(first_query - window + 1, 0) // block_n
        end_tile = cdiv(min(first_query + block_m, length), block_n)
        sink_tiles = min(cdiv(sinks, block_n), first_tile)
        tiles += sink_tiles + end_tile - first_tile
        keys += sink_tiles * block_n + min(end_tile * block_n, length) - first_tile * block_n
    return tiles, keys


def window_query_tiles(length: int, window: int, block_m: int, block_n: int, sinks: int = 0) -> tuple[int, int]:
    """The same from the side of the keys: tiles of block_m queries that all tiles of block_n keys visit, and their
    queries."""
    tiles = queries = 0
    for first_key in range(0, length, block_n):
        last_query = (length if first_key < sinks else min(first_key + block_n - 1 + window, length)) - 1
        first_tile, end_tile = first_key // block_m, last_query // block_m + 1
        tiles += end_tile - first_tile
        queries += min(end_tile * block_m, length) - first_tile * block_m
    return tiles, queries


def sliding_window(sizes: AttentionSizes, dtype: torch.dtype, window: int, sinks: int = 0) -> list[TiledTraffic]:
    """The output; the gradient of q, which also reads the output and leaves delta; the gradients of k and v."""
    chosen, row_bytes, length = sparse_tiles(dtype, sizes.head_dim), sizes.head_dim * dtype.itemsize, sizes.queries
    heads, kv_heads = sizes.batch * sizes.heads, sizes.batch * sizes.kv_heads

    def dots(tiles: int, products: int, shape: Tiles) -> int:
        return heads * tiles * 2 * products * shape.rows * shape.keys * sizes.head_dim

    tiles, keys = window_key_tiles(length, window, chosen.forward.rows, chosen.forward.keys, sinks)
    forward = TiledTraffic(
        loaded=heads * (length + 2 * keys) * row_bytes,
        stored=heads * length * (row_bytes + LSE),
        dot_flops=dots(tiles, 2, chosen.forward),
    )
    tiles, keys = window_key_tiles(length, window, chosen.grad_q.rows, chosen.grad_q.keys, sinks)
    grad_q = TiledTraffic(
        loaded=heads * ((3 * length + 2 * keys) * row_bytes + LSE * length),
        stored=heads * length * (row_bytes + DELTA),
        dot_flops=dots(tiles, 3, chosen.grad_q),
    )
    tiles, queries = window_query_tiles(length, window, chosen.grad_k_v.rows, chosen.grad_k_v.keys, sinks)
    grad_k_v = TiledTraffic(
        loaded=kv_heads * 2 * length * row_bytes + heads * queries * (2 * row_bytes + LSE + DELTA),
        stored=kv_heads * 2 * length * row_bytes,
        dot_flops=dots(tiles, 4, chosen.grad_k_v),
    )
    return [forward, grad_q, grad_k_v]


def block_sparse(mask: BlockMask, sizes: AttentionSizes, dtype: torch.dtype) -> list[TiledTraffic]:
    """As `sliding_window`; each program also reads where its list starts and ends, and the list tile by tile."""
    shipped, row_bytes = sparse_tiles(dtype, sizes.head_dim), sizes.head_dim * dtype.itemsize
    rows, kv_rows = sizes.heads * sizes.queries, sizes.kv_heads * sizes.keys

    def visits(shape: Tiles) -> tuple[int, int, int]:
        """Tiles that all heads visit together; the keys in them; the queries in them."""
        visited = mask.by_tiles(sizes, shape).expand(sizes.heads, -1, -1)
        keys, queries = _sizes_of_blocks(sizes.keys, shape.keys), _sizes_of_blocks(sizes.queries, shape.rows)
        return int(visited.sum()), int((visited * keys).sum()), int((visited * queries[:, None]).sum())

    def launch(loaded: int, stored: int, tiles: int, programs: int, products: int, shape: Tiles) -> TiledTraffic:
        indices = INDEX * (tiles + 2 * sizes.heads * programs)
        dots = tiles * 2 * products * shape.rows * shape.keys * sizes.head_dim
        return TiledTraffic(sizes.batch * (loaded + indices), sizes.batch * stored, sizes.batch * dots)

    forward, grad_q, grad_k_v = (mask.divided(each) for each in (shipped.forward, shipped.grad_q, shipped.grad_k_v))
    tiles, keys, _ = visits(forward)
    found = [
        launch(
            (rows + 2 * keys) * row_bytes,
            rows * (row_bytes + LSE),
            tiles,
            cdiv(sizes.queries, forward.rows),
            2,
            forward,
        )
    ]
    tiles, keys, _ = visits(grad_q)
    loaded = (3 * rows + 2 * keys) * row_bytes + LSE * rows
    found.append(launch(loaded, rows * (row_bytes + DELTA), tiles, cdiv(sizes.queries, grad_q.rows), 3, grad_q))
    tiles, _, queries = visits(grad_k_v)
    loaded = (2 * kv_rows + 2 * queries) * row_bytes + (LSE + DELTA) * queries
    found.append(launch(loaded, 2 * kv_rows * row_bytes, tiles, cdiv(sizes.keys, grad_k_v.keys), 4, grad_k_v))
    return found


def _sizes_of_blocks(length: int, block: int) -> torch.Tensor:
    return torch.arange(0, length, block).neg().add(length).clamp(max=block)


def simplicial(problem: Problem) -> list[TiledTraffic]:
    """The output, and the gradients of q; of k2 and v2; of k1 and v1.

    A program loads what belongs to its rows once, and keys tile by tile. Each row takes q, grad_out, k2 and v2, its
    log-sum-exp, and its delta except in the kernel for q, which makes it from the output. Gradients that chunks of
    offsets, or heads, share are stored in float32 parts.
    """
    shipped, heads, length, itemsize = problem.shipped, problem.heads, problem.length, problem.dtype.itemsize
    row_bytes, pairs = problem.head_dim * itemsize, pairs_in_window(length, problem.window2)
    elements = heads * length * problem.head_dim
    chunks, chunks2 = problem.chunks(shipped.grad_q), problem.chunks(shipped.grad_k2_v2)

    def dots(tiles: int, products: int, shape: Tiles) -> int:
        return heads * tiles * 2 * products * shape.rows * shape.keys * problem.head_dim

    tiles, keys = _simplicial_visits(problem, shipped.forward)
    forward = TiledTraffic(
        heads * (3 * pairs + 2 * keys) * row_bytes, heads * length * (row_bytes + LSE), dots(tiles, 2, shipped.forward)
    )
    tiles, keys = _simplicial_visits(problem, shipped.grad_q)
    grad_q = TiledTraffic(
        loaded=heads * ((2 * length * chunks + 4 * pairs + 2 * keys) * row_bytes + LSE * pairs),
        stored=elements * (itemsize if chunks == 1 else 4 * chunks) + heads * length * DELTA,
        dot_flops=dots(tiles, 3, shipped.grad_q),
    )
    tiles, keys = _simplicial_visits(problem, shipped.grad_k2_v2, seen_by_later_queries=True)
    grad_k2_v2 = TiledTraffic(
        loaded=heads * ((4 * pairs + 2 * keys) * row_bytes + (LSE + DELTA) * pairs),
        stored=2 * elements * (itemsize if chunks2 * problem.group == 1 else 4 * chunks2),
        dot_flops=dots(tiles, 4, shipped.grad_k2_v2),
    )
    tiles = rows = 0
    for first in range(0, length, shipped.grad_k1_v1.keys):
        end = min(first + shipped.grad_k1_v1.keys - 1 + problem.window1, length)
        tiles += cdiv((end - first) * problem.window2, shipped.grad_k1_v1.rows)
        rows += pairs_in_window(end, problem.window2) - pairs_in_window(first, problem.window2)
    grad_k1_v1 = TiledTraffic(
        loaded=problem.kv_heads * 2 * length * row_bytes + heads * rows * (4 * row_bytes + LSE + DELTA),
        stored=problem.kv_heads * length * 2 * row_bytes,
        dot_flops=dots(tiles, 4, shipped.grad_k1_v1),
    )
    return [forward, grad_q, grad_k2_v2, grad_k1_v1]


def _simplicial_visits(problem: Problem, shape: Tiles, *, seen_by_later_queries: bool = False) -> tuple[int, int]:
    """Tiles of keys, and keys in them, that the programs of one head visit."""
    constants, tiles, keys = problem.rows_that_are_pairs(shape).constants, 0, 0
    positions, offsets, block = (constants[f"BLOCK_{name}"] for name in ("POSITIONS", "OFFSETS", "KEYS"))
    for first in range(0, problem.length, positions):
        for offset in range(0, problem.window2, offsets):
            first_query, last_query = first, first + positions - 1
            if seen_by_later_queries:
                first_query, last_query = first + offset, last_query + offset + offsets - 1
            first_key = max(first_query - problem.window1 + 1, 0) // block * block
            visited = max(0, cdiv(min(last_query + 1, problem.length) - first_key, block))
            tiles += visited
            keys += min(visited * block, max(0, problem.length - first_key))
    return tiles, keys
