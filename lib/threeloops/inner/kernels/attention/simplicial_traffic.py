"""The least that 2-simplicial attention must move and compute."""

from threeloops.inner.costs import Work
from threeloops.inner.kernels.attention.simplicial_problem import Problem
from threeloops.inner.kernels.attention.sizes import pairs_in_window

__all__ = ["backward_cost", "cost"]


def _triples(length: int, window1: int, window2: int) -> int:
    """(i, j, k) that attend: Σ min(i + 1, window1) · min(i + 1, window2)."""
    small, large = sorted((min(window1, length), min(window2, length)))
    while_both_grow = small * (small + 1) * (2 * small + 1) // 6
    while_one_grows = small * (large * (large + 1) - small * (small + 1)) // 2
    return while_both_grow + while_one_grows + small * large * (length - large)


def cost(problem: Problem) -> Work:
    """The least that the forward pass takes: q, k1, k2, v1, v2 read once, the output and a float32 log-sum-exp written.

    FLOPs: 4·head_dim + 6 per triple, as attention has per pair; 3·head_dim per pair (i, k), for q ∘ k2 and for the
    product with v2 and its sum. In 16 bits that is about window1·window2/3 FLOPs per byte: never bound by memory.
    """
    heads, length, head_dim = problem.heads, problem.length, problem.head_dim
    elements = length * head_dim * (2 * heads + 4 * problem.kv_heads)
    flops = (4 * head_dim + 6) * _triples(length, problem.window1, problem.window2)
    flops += 3 * head_dim * pairs_in_window(length, problem.window2)
    return Work(elements * problem.dtype.itemsize + 4 * heads * length, heads * flops)


def backward_cost(problem: Problem) -> Work:
    """The least of the three backward kernels. Each reads q, k1, k2, v1, v2, grad_out and the log-sum-exp once, the
    first also the output, the others the delta that it wrote; they write five gradients, some of them in float32 parts
    that heads or chunks of offsets share. FLOPs of a triple: (6 + 8 + 8)·head_dim, and five per kernel for the
    exponential and what surrounds it."""
    heads, length, head_dim, itemsize = problem.heads, problem.length, problem.head_dim, problem.dtype.itemsize
    read = 3 * (2 * heads + 4 * problem.kv_heads) + heads
    chunks, chunks2 = (problem.chunks(tiles) for tiles in (problem.shipped.grad_q, problem.shipped.grad_k2_v2))
    of_q = heads * (itemsize if chunks == 1 else 4 * chunks)
    of_k2_v2 = 2 * heads * (itemsize if chunks2 * problem.group == 1 else 4 * chunks2)
    written = 2 * problem.kv_heads * itemsize + of_q + of_k2_v2
    flops = (22 * head_dim + 3 * 5) * _triples(length, problem.window1, problem.window2)
    flops += (4 + 6 + 2) * head_dim * pairs_in_window(length, problem.window2)
    return Work(length * head_dim * (read * itemsize + written) + 6 * 4 * heads * length, heads * flops)
