"""How much 2-simplicial attention must move and compute, and how much its kernels ask for, exactly.

The first is `cost` and `backward_cost`. The second, `forward_traffic` and `backward_traffic`, follows from the tiles:
what the traffic meter counts must be equal to it, to the byte and to the FLOP.
"""

from collections.abc import Mapping

import torch
from triton import cdiv

from threeloops.inner.costs import Work, require_positive
from threeloops.inner.kernels.attention.simplicial_problem import Problem
from threeloops.inner.kernels.launching import TiledTraffic


def pairs(length: int, window: int) -> int:
    """(i, j) with i − window < j ≤ i, for all i: Σ min(i + 1, window)."""
    window = min(window, length)
    return length * window - window * (window - 1) // 2


def triples(length: int, window1: int, window2: int) -> int:
    """(i, j, k) that attend: Σ min(i + 1, window1) · min(i + 1, window2)."""
    small, large = sorted((min(window1, length), min(window2, length)))
    while_both_grow = small * (small + 1) * (2 * small + 1) // 6
    while_one_grows = small * (large * (large + 1) - small * (small + 1)) // 2
    return while_both_grow + while_one_grows + small * large * (length - large)


def cost(
    batch: int,
    heads: int,
    length: int,
    head_dim: int,
    window1: int,
    window2: int,
    bytes_per_element: float = 2,
    *,
    kv_heads: int | None = None,
) -> Work:
    """The least that 2-simplicial attention takes: q, k1, k2, v1, v2 read once, the output and a float32 log-sum-exp
    written. FLOPs: 4·head_dim + 6 a triple, as attention has for a pair; 3·head_dim a pair (i, k), for q ∘ k2 and for
    what v2 multiplies and adds. In 16 bits that is about window1·window2/3 FLOPs a byte: never bound by memory.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    require_positive(batch=batch, heads=heads, length=length, head_dim=head_dim, kv_heads=kv_heads)
    require_positive(window1=window1, window2=window2, bytes_per_element=bytes_per_element)
    elements = batch * length * head_dim * (2 * heads + 4 * kv_heads)
    flops = (4 * head_dim + 6) * triples(length, window1, window2)
    flops += 3 * head_dim * pairs(length, min(window1, window2))
    return Work(elements * bytes_per_element + 4 * batch * heads * length, batch * heads * flops)


def backward_cost(
    batch: int,
    heads: int,
    length: int,
    head_dim: int,
    window1: int,
    window2: int,
    bytes_per_element: float = 2,
    *,
    kv_heads: int | None = None,
) -> Work:
    """The least of the three backward kernels. Each reads q, k1, k2, v1, v2, grad_out and the log-sum-exp once, the
    first also the output, the others the delta that it wrote; they write five gradients, some of them in parts. FLOPs
    of a triple: (6 + 8 + 8)·head_dim, and five a kernel for what surrounds the exponential."""
    kv_heads = heads if kv_heads is None else kv_heads
    require_positive(batch=batch, heads=heads, length=length, head_dim=head_dim, kv_heads=kv_heads)
    require_positive(window1=window1, window2=window2, bytes_per_element=bytes_per_element)
    small, large = sorted((min(window1, length), min(window2, length)))
    dtype = torch.float32 if bytes_per_element == 4 else torch.bfloat16
    problem = Problem(batch * heads, batch * kv_heads, length, head_dim, large, small, 1.0, dtype)
    read = 3 * (2 * problem.heads + 4 * problem.kv_heads) + problem.heads
    written = length * head_dim * 2 * problem.kv_heads * bytes_per_element + sum(_gradient_bytes(problem))
    flops = (22 * head_dim + 3 * 5) * triples(length, small, large) + (4 + 6 + 2) * head_dim * pairs(length, small)
    traffic = read * length * head_dim * bytes_per_element + written + 6 * 4 * problem.heads * length
    return Work(traffic, problem.heads * flops)


def forward_traffic(problem: Problem) -> TiledTraffic:
    """A program loads q, k2 and v2 once for each of its rows, and k1 and v1 tile by tile."""
    constants = problem.rows_that_are_pairs(problem.shipped.forward).constants
    tiles, keys = _visits(problem, constants)
    row_bytes = problem.head_dim * problem.dtype.itemsize
    return TiledTraffic(
        tiles=problem.heads * tiles,
        loaded=problem.heads * (3 * pairs(problem.length, problem.window2) + 2 * keys) * row_bytes,
        stored=problem.heads * problem.length * (row_bytes + 4),
        dot_flops=problem.heads * tiles * 4 * _tile_products(problem, constants),
    )


def backward_traffic(problem: Problem) -> tuple[TiledTraffic, TiledTraffic, TiledTraffic]:
    """Of the kernels for q, for k2 and v2, for k1 and v1. Each row takes q, grad_out, k2 and v2, its log-sum-exp and,
    except in the first kernel, which makes it from the output, its delta."""
    of_q = problem.rows_that_are_pairs(problem.shipped.grad_q).constants
    of_k2_v2 = problem.rows_that_are_pairs(problem.shipped.grad_k2_v2).constants
    of_k1_v1 = problem.rows_of_all_pairs(problem.shipped.grad_k1_v1).constants
    heads, length = problem.heads, problem.length
    row_bytes = problem.head_dim * problem.dtype.itemsize
    rows, chunks = pairs(length, problem.window2), problem.chunks(problem.shipped.grad_q)
    of_q_bytes, of_k2_v2_bytes = _gradient_bytes(problem)

    tiles, keys = _visits(problem, of_q)
    grad_q = TiledTraffic(
        tiles=heads * tiles,
        loaded=heads * ((2 * length * chunks + 4 * rows + 2 * keys) * row_bytes + 4 * rows),
        stored=of_q_bytes + heads * length * 4,
        dot_flops=heads * tiles * 6 * _tile_products(problem, of_q),
    )
    tiles, keys = _visits(problem, of_k2_v2, seen_by_later_queries=True)
    grad_k2_v2 = TiledTraffic(
        tiles=heads * tiles,
        loaded=heads * ((4 * rows + 2 * keys) * row_bytes + 8 * rows),
        stored=of_k2_v2_bytes,
        dot_flops=heads * tiles * 8 * _tile_products(problem, of_k2_v2),
    )
    tiles, rows = 0, 0
    for first in range(0, length, of_k1_v1["BLOCK_KEYS"]):
        end = min(first + of_k1_v1["BLOCK_KEYS"] - 1 + problem.window1, length)
        tiles += cdiv((end - first) * problem.window2, of_k1_v1["ROWS"])
        rows += pairs(end, problem.window2) - pairs(first, problem.window2)
    grad_k1_v1 = TiledTraffic(
        tiles=heads * tiles,
        loaded=problem.kv_heads * 2 * length * row_bytes + heads * rows * (4 * row_bytes + 8),
        stored=problem.kv_heads * length * 2 * row_bytes,
        dot_flops=heads * tiles * 8 * _tile_products(problem, of_k1_v1),
    )
    return grad_q, grad_k2_v2, grad_k1_v1


def computed_share(problem: Problem) -> float:
    """Of the products in the forward kernel's tiles, those whose triple attends; the others are computed and hidden."""
    return 4 * problem.head_dim * problem.heads * triples_of(problem) / forward_traffic(problem).dot_flops


def computed_share_of_queries(problem: Problem, queries: int, keys: int) -> float:
    """The same if a tile's rows were consecutive queries, all facing one k at a time, and `keys` keys j."""
    computed = 0
    for first in range(0, problem.length, queries):
        end = min(first + queries, problem.length)
        first_key = max(first - problem.window1 + 1, 0) // keys * keys
        computed += (end - max(first - problem.window2 + 1, 0)) * queries * cdiv(end - first_key, keys) * keys
    return triples_of(problem) / computed


def triples_of(problem: Problem) -> int:
    return triples(problem.length, problem.window1, problem.window2)


def _tile_products(problem: Problem, constants: Mapping[str, int]) -> int:
    """rows · keys · head_dim of one tile."""
    rows = constants.get("ROWS") or constants["BLOCK_POSITIONS"] * constants["BLOCK_OFFSETS"]
    return rows * constants["BLOCK_KEYS"] * problem.head_dim


def _gradient_bytes(problem: Problem) -> tuple[int, int]:
    """What is written of dq, and of dk2 and dv2: float32 parts where chunks of offsets, or heads, share a gradient."""
    chunks, chunks2 = (problem.chunks(tiles) for tiles in (problem.shipped.grad_q, problem.shipped.grad_k2_v2))
    elements, whole = problem.heads * problem.length * problem.head_dim, problem.dtype.itemsize
    of_q = elements * (whole if chunks == 1 else 4 * chunks)
    return of_q, 2 * elements * (whole if chunks2 * problem.group == 1 else 4 * chunks2)


def _visits(problem: Problem, constants: Mapping[str, int], *, seen_by_later_queries: bool = False) -> tuple[int, int]:
    """Tiles of keys, and keys in them, that the programs of one head visit."""
    tiles = keys = 0
    block, length = constants["BLOCK_KEYS"], problem.length
    for first in range(0, length, constants["BLOCK_POSITIONS"]):
        for offset in range(0, problem.window2, constants["BLOCK_OFFSETS"]):
            first_query, last_query = first, first + constants["BLOCK_POSITIONS"] - 1
            if seen_by_later_queries:
                first_query, last_query = first + offset, last_query + offset + constants["BLOCK_OFFSETS"] - 1
            first_key = max(first_query - problem.window1 + 1, 0) // block * block
            visited = max(0, cdiv(min(last_query + 1, length) - first_key, block))
            tiles += visited
            keys += min(visited * block, max(0, length - first_key))
    return tiles, keys
