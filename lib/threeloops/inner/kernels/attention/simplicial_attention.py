"""2-simplicial attention, forward: every query attends to pairs of positions instead of to single ones.

    logits[i, j, k] = scale · Σ_d q[i, d]·k1[j, d]·k2[k, d]         one softmax over all pairs (j, k) that i may see:
    out[i]          = Σ_jk weights[i, j, k] · (v1[j] ∘ v2[k])       i − window1 < j ≤ i and i − window2 < k ≤ i

Sources: Clift, Doryn, Murfet and Wallbridge, "Logic and the 2-Simplicial Transformer" (2019), arXiv:1909.00668; the two
sliding windows and a Triton kernel: Roy et al., "Fast and Simplex: 2-Simplicial Attention in Triton" (2025),
arXiv:2507.02754.

The trilinear form is a dot product with a composed query: Σ_d (q[i] ∘ k2[k])[d]·k1[j, d]. So a *row* here is a pair
(query i, offset o) that stands for k = i − o, and all rows of a program go through ordinary flash attention over k1 and
v1: two matrix products for the tensor cores, an online softmax between them. At the end each row is multiplied by its
v2[k], and the rows of a query, each with its own maximum and sum, are merged into one softmax.

With pairs as rows, the smaller window wastes nothing: 128 rows are 4 queries × 32 offsets, all of them visible. The
alternative is a tile whose rows are consecutive queries that share one k. Each row would then be computed for every k
that any query of the tile sees. At windows of 512 and 32, that is three to six times the visible work. About FLOPs: the
paper counts 6·head_dim for each triple (i, j, k), as the two trilinear sums suggest. But q ∘ k2 and the product with v2
are computed once per pair and not per triple, which leaves 4·head_dim (`cost`).

Published numbers for the H100 in bf16, which were not measured here: the authors' plain Triton kernel reaches 337
TFLOP/s, and their kernel in TLX, an extension of Triton, reaches 588. The rows of both are 64 or 128 query heads that
share one key head (pytorch.org/blog/fast-2-simplicial-attention-hardware-efficient-kernels-in-tlx).
"""

import torch
import triton
import triton.language as tl

from threeloops.inner.costs import Work
from threeloops.inner.kernels.attention.simplicial_attention_backward import simplicial_attention_backward
from threeloops.inner.kernels.attention.simplicial_problem import (
    LOG2_E_CONSTANT,
    Problem,
    hide,
    load_rows,
    merge,
    problem_of,
)
from threeloops.inner.kernels.attention.sizes import AttentionNode, pairs_in_window

__all__ = ["backward_cost", "cost", "reference", "simplicial_attention", "simplicial_attention_kernel"]


@triton.jit
def simplicial_attention_kernel(
    q, k1, k2, v1, v2, out, lse, length, window1, window2, scale,
    CHUNKS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_POSITIONS: tl.constexpr, BLOCK_OFFSETS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    ROWS: tl.constexpr = BLOCK_POSITIONS * BLOCK_OFFSETS
    head = tl.program_id(1).to(tl.int64)
    q += head * length * HEAD_DIM
    k1 += head // GROUP * length * HEAD_DIM
    k2 += head // GROUP * length * HEAD_DIM
    v1 += head // GROUP * length * HEAD_DIM
    v2 += head // GROUP * length * HEAD_DIM

    first_query = tl.program_id(0) * BLOCK_POSITIONS
    row_query = first_query + tl.arange(0, ROWS) // BLOCK_OFFSETS
    first_key = tl.maximum(first_query - window1 + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
    end_key = tl.minimum(first_query + BLOCK_POSITIONS, length)

    maximum = tl.full((BLOCK_POSITIONS,), -3.4e38, tl.float32)
    total = tl.zeros((BLOCK_POSITIONS,), tl.float32)
    output = tl.zeros((BLOCK_POSITIONS, HEAD_DIM), tl.float32)
    for chunk in range(CHUNKS):
        offset = chunk * BLOCK_OFFSETS + tl.arange(0, ROWS) % BLOCK_OFFSETS
        row_key2 = row_query - offset
        exists = (row_query < length) & (row_key2 >= 0) & (offset < window2)
        pair = load_rows(q, row_query, exists, HEAD_DIM).to(tl.float32) * load_rows(k2, row_key2, exists, HEAD_DIM)
        pair = (pair * (scale * LOG2_E_CONSTANT)).to(q.dtype.element_ty)

        row_maximum = tl.full((ROWS,), -3.4e38, tl.float32)
        row_total = tl.zeros((ROWS,), tl.float32)
        row_output = tl.zeros((ROWS, HEAD_DIM), tl.float32)
        for start in range(first_key, end_key, BLOCK_KEYS):
            keys = start + tl.arange(0, BLOCK_KEYS)
            logits = tl.dot(pair, load_rows(k1, keys, keys < length, HEAD_DIM).T, input_precision="ieee")
            if (start + BLOCK_KEYS - 1 > first_query) | (start <= first_query + BLOCK_POSITIONS - 1 - window1):
                logits = hide(logits, row_query[:, None], keys[None, :], window1)
            new_maximum = tl.maximum(row_maximum, tl.max(logits, 1))
            weights = tl.exp2(logits - new_maximum[:, None])
            rescale = tl.exp2(row_maximum - new_maximum)
            row_total = row_total * rescale + tl.sum(weights, 1)
            values = load_rows(v1, keys, keys < length, HEAD_DIM)
            row_output = tl.dot(weights.to(values.dtype), values, row_output * rescale[:, None], input_precision="ieee")
            row_maximum = new_maximum

        row_maximum = tl.where(exists, row_maximum, -3.4e38)
        row_output *= load_rows(v2, row_key2, exists, HEAD_DIM)
        maximum, total, output = merge(maximum, total, output, row_maximum, row_total, row_output)
    queries = first_query + tl.arange(0, BLOCK_POSITIONS)
    at = queries[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    output = (output / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + head * length * HEAD_DIM + at, output, mask=queries[:, None] < length)
    tl.store(lse + head * length + queries, maximum + tl.log2(total), mask=queries < length)


def simplicial_attention(
    q: torch.Tensor,
    k1: torch.Tensor,
    k2: torch.Tensor,
    v1: torch.Tensor,
    v2: torch.Tensor,
    window1: int,
    window2: int,
    *,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Compute 2-simplicial attention: q (batch, heads, sequence, head_dim) → the same shape and dtype. Differentiable.

    k1, k2, v1, v2: (batch, heads, sequence, head_dim), with a number of heads that divides q's; fp16, bf16 or float32;
    head_dim 32, 64 or 128. window1: how many of the latest positions, its own included, a query sees of k1 and v1;
    window2: of k2 and v2. softmax_scale: 1/√head_dim by default. Inputs that are not contiguous are copied. In fp16,
    the products q·k2 times the scale must stay below 65,504.

    Raises ValueError for arguments that cannot be computed.
    """
    # The form is symmetric in the two keys. A tile's rows are pairs with the smaller window, so they cover all of it.
    if window2 > window1:
        k1, k2, v1, v2, window1, window2 = k2, k1, v2, v1, window2, window1
    problem = problem_of(q, k1, k2, v1, v2, window1, window2, softmax_scale)
    inputs = (tensor.contiguous() for tensor in (q, k1, k2, v1, v2))
    return AttentionNode.apply(_forward, simplicial_attention_backward, (problem,), *inputs)


def _forward(inputs: tuple[torch.Tensor, ...], problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and each query's log-sum-exp to the base 2, float32 (batch, heads, sequence), of contiguous
    inputs."""
    q = inputs[0]
    out, lse = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)
    if not problem.is_empty:
        tiles = problem.shipped.forward
        chosen = problem.rows_that_are_pairs(tiles)
        grid = triton.cdiv(problem.length, chosen.constants["BLOCK_POSITIONS"]), problem.heads
        simplicial_attention_kernel[grid](
            *inputs, out, lse, problem.length, problem.window1, problem.window2, problem.scale,
            CHUNKS=problem.chunks(tiles), **chosen.options(),
        )  # fmt: skip
    return out, lse


def reference(
    q: torch.Tensor,
    k1: torch.Tensor,
    k2: torch.Tensor,
    v1: torch.Tensor,
    v2: torch.Tensor,
    window1: int,
    window2: int,
    *,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Compute the same in PyTorch, with all sequence³ logits in memory and their softmax in float32 at least."""
    length, head_dim = q.shape[-2:]
    k1, k2, v1, v2 = (tensor.repeat_interleave(q.shape[1] // k1.shape[1], dim=1) for tensor in (k1, k2, v1, v2))
    logits = torch.einsum("bhid,bhjd,bhkd->bhijk", q, k1, k2)
    logits = logits.to(torch.promote_types(q.dtype, torch.float32)) * (
        head_dim**-0.5 if softmax_scale is None else softmax_scale
    )
    ago = torch.arange(length, device=q.device)[:, None] - torch.arange(length, device=q.device)[None, :]
    seen1, seen2 = ((ago >= 0) & (ago < window) for window in (window1, window2))
    logits = logits.masked_fill(~(seen1[:, :, None] & seen2[:, None, :]), float("-inf"))
    weights = logits.flatten(-2).softmax(-1).view_as(logits).to(q.dtype)
    return torch.einsum("bhijk,bhjd,bhkd->bhid", weights, v1, v2)


def _triples(length: int, window1: int, window2: int) -> int:
    """Count the triples (i, j, k) that attend: Σ min(i + 1, window1) · min(i + 1, window2)."""
    small, large = sorted((min(window1, length), min(window2, length)))
    while_both_grow = small * (small + 1) * (2 * small + 1) // 6
    while_one_grows = small * (large * (large + 1) - small * (small + 1)) // 2
    return while_both_grow + while_one_grows + small * large * (length - large)


def cost(problem: Problem) -> Work:
    """Return the least work of the forward pass: q, k1, k2, v1, v2 read once, the output and a float32 log-sum-exp
    written.

    FLOPs: 4·head_dim + 6 per triple, as attention has per pair; 3·head_dim per pair (i, k), for q ∘ k2 and for the
    product with v2 and its sum. In 16 bits that is about window1·window2/3 FLOPs per byte: never bound by memory.
    """
    heads, length, head_dim = problem.heads, problem.length, problem.head_dim
    elements = length * head_dim * (2 * heads + 4 * problem.kv_heads)
    flops = (4 * head_dim + 6) * _triples(length, problem.window1, problem.window2)
    flops += 3 * head_dim * pairs_in_window(length, problem.window2)
    return Work(elements * problem.dtype.itemsize + 4 * heads * length, heads * flops)


def backward_cost(problem: Problem) -> Work:
    """Return the least work of the three backward kernels. Each reads q, k1, k2, v1, v2, grad_out and the log-sum-exp
    once, the first also reads the output, and the others read the delta that it wrote. They write five gradients, some
    of them in float32 parts that heads or chunks of offsets share. FLOPs of a triple are (6 + 8 + 8)·head_dim, and five
    per kernel for the exponential and the operations around it."""
    heads, length, head_dim, itemsize = problem.heads, problem.length, problem.head_dim, problem.dtype.itemsize
    read = 3 * (2 * heads + 4 * problem.kv_heads) + heads
    chunks, chunks2 = (problem.chunks(tiles) for tiles in (problem.shipped.grad_q, problem.shipped.grad_k2_v2))
    of_q = heads * (itemsize if chunks == 1 else 4 * chunks)
    of_k2_v2 = 2 * heads * (itemsize if chunks2 * problem.group == 1 else 4 * chunks2)
    written = 2 * problem.kv_heads * itemsize + of_q + of_k2_v2
    flops = (22 * head_dim + 3 * 5) * _triples(length, problem.window1, problem.window2)
    flops += (4 + 6 + 2) * head_dim * pairs_in_window(length, problem.window2)
    return Work(length * head_dim * (read * itemsize + written) + 6 * 4 * heads * length, heads * flops)
