"""Sliding-window attention: query i sees the `window` latest keys, i − window < j ≤ i; tiles without any of them are
not visited.

Sources: Child et al., "Generating Long Sequences with Sparse Transformers" (2019), arXiv:1904.10509; Beltagy, Peters
and Cohan, "Longformer" (2020), arXiv:2004.05150; the tiles are those of `flash_attention`. Sinks are the first few
keys, which stay visible to all queries, because heads put superfluous weight there: Xiao et al., "Efficient Streaming
Language Models with Attention Sinks" (2023), arXiv:2309.17453.

A mask makes scores −inf; it does not make them cheaper. Here the window bounds the loop: of N/BLOCK_N tiles of keys a
program visits about (window + BLOCK_M)/BLOCK_N, and masks only those that the window's two edges cross. Traffic and
FLOPs then grow with N·window instead of N² (`sliding_window_traffic` has the exact counts).

The backward pass has two kernels, as in FlashAttention-2. In one, a program walks along the keys of its queries and
sums dq. In the other, a program walks along the queries that see its keys, in all heads of the group, and sums dk and
dv. Each program owns what it sums, so nothing is atomic and every run gives the same bits. The first kernel also stores
delta, each row's grad_output·output, for the second.
"""

import torch
import triton
import triton.language as tl

from threeloops.inner.kernels import launching
from threeloops.inner.kernels.attention.sizes import AttentionNode, AttentionSizes, rows_in_one_piece, sizes_of, strides
from threeloops.inner.kernels.launching import LOG2_E
from threeloops.inner.kernels.sparse.sliding_window_traffic import backward_cost, cost
from threeloops.inner.kernels.sparse.tiles import (
    add_gradient_of_keys,
    add_gradient_of_queries,
    finish,
    hide_outside_window,
    load_tile,
    shipped,
    store_tile,
    take_tile,
)

__all__ = [
    "backward_cost", "cost", "reference", "sliding_window_attention", "sliding_window_attention_kernel",
    "sliding_window_grad_k_v_kernel", "sliding_window_grad_q_kernel",
]  # fmt: skip


@triton.jit
def sliding_window_attention_kernel(
    q, k, v, output, lse,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    length, window, sinks, group, scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    first_query = tl.program_id(0) * BLOCK_M
    k += batch * stride_kb + head // group * stride_kh
    v += batch * stride_vb + head // group * stride_vh
    q_values = load_tile(q + batch * stride_qb + head * stride_qh, first_query, length, stride_qn, BLOCK_M, HEAD_DIM)
    queries = first_query + tl.arange(0, BLOCK_M)

    maximum = tl.full((BLOCK_M,), -3.4e38, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    values = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    first_tile = tl.maximum(first_query - window + 1, 0) // BLOCK_N
    end_tile = tl.cdiv(tl.minimum(first_query + BLOCK_M, length), BLOCK_N)
    sink_tiles = tl.minimum(tl.cdiv(sinks, BLOCK_N), first_tile)
    for step in range(sink_tiles + end_tile - first_tile):
        first_key = tl.where(step < sink_tiles, step, first_tile + step - sink_tiles) * BLOCK_N
        k_values = load_tile(k, first_key, length, stride_kn, BLOCK_N, HEAD_DIM)
        v_values = load_tile(v, first_key, length, stride_vn, BLOCK_N, HEAD_DIM)
        scores = tl.dot(q_values, k_values.T, input_precision="ieee")
        if (first_key + BLOCK_N - 1 > first_query) | (first_key + window < first_query + BLOCK_M):
            keys = first_key + tl.arange(0, BLOCK_N)
            scores = hide_outside_window(scores, queries[:, None], keys[None, :], window, sinks)
        maximum, total, values = take_tile(scores, scale, v_values, maximum, total, values)

    values, log_sum = finish(maximum, total, values)
    row = batch * tl.num_programs(1) + head
    store_tile(output + row * length * HEAD_DIM, first_query, length, values)
    tl.store(lse + row * length + queries, log_sum, mask=queries < length)


def sliding_window_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    window: int,
    *,
    sinks: int = 0,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Compute causal attention to the `window` latest keys, a query's own included: q (batch, heads, sequence,
    head_dim) → the same shape and dtype. Differentiable.

    Args:
        q, k, v: fp16, bf16 or float32; head_dim 16, 32, 64 or 128. k and v may have fewer heads, a divisor of q's. Any
            strides of batch, heads and sequence are allowed. A tensor whose rows are scattered is copied.
        window: at least 1.
        sinks: how many of the first keys stay visible to all later queries.
        softmax_scale: 1/√head_dim by default.

    Raises ValueError for arguments that cannot be computed.
    """
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    sizes = sizes_of(q, k, v, scale)
    launching.require_shape("k", k, (*k.shape[:2], sizes.queries, sizes.head_dim), "as long as q")
    if window < 1 or sinks < 0:
        raise ValueError(f"window = {window}, sinks = {sinks}: expected a window of 1 key or more, and 0 sinks or more")
    lengths = sizes.queries, min(window, sizes.queries), min(sinks, sizes.queries)
    return AttentionNode.apply(_forward, _backward, (sizes, lengths, scale), *rows_in_one_piece(q, k, v))


def _forward(
    inputs: tuple[torch.Tensor, ...], sizes: AttentionSizes, lengths: tuple[int, int, int], scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and each query's log-sum-exp to the base 2, float32 (batch, heads, sequence).

    `lengths`: of the sequence, the window and the sinks.
    """
    q = inputs[0]
    output, lse = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)
    if sizes.rows:
        tiles = shipped(q.dtype, sizes.head_dim).forward
        sliding_window_attention_kernel[triton.cdiv(sizes.queries, tiles.rows), sizes.heads, sizes.batch](
            *inputs, output, lse, *strides(*inputs), *lengths, sizes.group, scale * LOG2_E,
            **tiles.options(sizes.head_dim),
        )  # fmt: skip
    return output, lse


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    window: int,
    *,
    sinks: int = 0,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    """Compute the same in PyTorch: its attention under a mask, which computes every score and hides most."""
    position = torch.arange(q.shape[2], device=q.device)
    ago = position[:, None] - position[None, :]
    visible = (ago >= 0) & ((ago < window) | (position < sinks)[None, :])
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, scale=softmax_scale, enable_gqa=q.shape[1] != k.shape[1]
    )


@triton.jit
def sliding_window_grad_q_kernel(
    q, k, v, output, grad_output, lse, delta, grad_q,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, length, window, sinks, group, scale, scale_log2_e,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    row = batch * tl.num_programs(1) + head
    first_query = tl.program_id(0) * BLOCK_M
    k += batch * stride_kb + head // group * stride_kh
    v += batch * stride_vb + head // group * stride_vh
    q_values = load_tile(q + batch * stride_qb + head * stride_qh, first_query, length, stride_qn, BLOCK_M, HEAD_DIM)
    grad_output += batch * stride_gb + head * stride_gh
    grad_values = load_tile(grad_output, first_query, length, stride_gn, BLOCK_M, HEAD_DIM)
    values = load_tile(output + row * length * HEAD_DIM, first_query, length, HEAD_DIM, BLOCK_M, HEAD_DIM)
    queries = first_query + tl.arange(0, BLOCK_M)
    row_delta = tl.sum(values.to(tl.float32) * grad_values, 1)
    tl.store(delta + row * length + queries, row_delta, mask=queries < length)
    row_lse = tl.load(lse + row * length + queries, mask=queries < length, other=float("inf"))

    total = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    first_tile = tl.maximum(first_query - window + 1, 0) // BLOCK_N
    end_tile = tl.cdiv(tl.minimum(first_query + BLOCK_M, length), BLOCK_N)
    sink_tiles = tl.minimum(tl.cdiv(sinks, BLOCK_N), first_tile)
    for step in range(sink_tiles + end_tile - first_tile):
        first_key = tl.where(step < sink_tiles, step, first_tile + step - sink_tiles) * BLOCK_N
        k_values = load_tile(k, first_key, length, stride_kn, BLOCK_N, HEAD_DIM)
        v_values = load_tile(v, first_key, length, stride_vn, BLOCK_N, HEAD_DIM)
        scores = tl.dot(q_values, k_values.T, input_precision="ieee")
        if (first_key + BLOCK_N - 1 > first_query) | (first_key + window < first_query + BLOCK_M):
            keys = first_key + tl.arange(0, BLOCK_N)
            scores = hide_outside_window(scores, queries[:, None], keys[None, :], window, sinks)
        total = add_gradient_of_queries(
            scores, scale_log2_e, k_values, v_values, grad_values, row_lse, row_delta, total
        )
    store_tile(grad_q + row * length * HEAD_DIM, first_query, length, total * scale)


@triton.jit
def sliding_window_grad_k_v_kernel(
    q, k, v, grad_output, lse, delta, grad_k, grad_v,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, length, window, sinks, group, scale, scale_log2_e,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    first_key = tl.program_id(0) * BLOCK_N
    keys = first_key + tl.arange(0, BLOCK_N)
    k_values = load_tile(k + batch * stride_kb + kv_head * stride_kh, first_key, length, stride_kn, BLOCK_N, HEAD_DIM)
    v_values = load_tile(v + batch * stride_vb + kv_head * stride_vh, first_key, length, stride_vn, BLOCK_N, HEAD_DIM)

    total_k = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    total_v = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    first_tile = first_key // BLOCK_M
    last_query = tl.where(first_key < sinks, length, tl.minimum(first_key + BLOCK_N - 1 + window, length)) - 1
    tiles = last_query // BLOCK_M + 1 - first_tile
    for step in range(tiles * group):
        head = kv_head * group + step // tiles
        row = batch * tl.num_programs(1) * group + head
        first_query = (first_tile + step % tiles) * BLOCK_M
        queries = first_query + tl.arange(0, BLOCK_M)
        q_head = q + batch * stride_qb + head * stride_qh
        q_values = load_tile(q_head, first_query, length, stride_qn, BLOCK_M, HEAD_DIM)
        grad_head = grad_output + batch * stride_gb + head * stride_gh
        grad_values = load_tile(grad_head, first_query, length, stride_gn, BLOCK_M, HEAD_DIM)
        row_lse = tl.load(lse + row * length + queries, mask=queries < length, other=float("inf"))
        row_delta = tl.load(delta + row * length + queries, mask=queries < length, other=0.0)
        scores = tl.dot(k_values, q_values.T, input_precision="ieee")
        if (first_key + BLOCK_N - 1 > first_query) | (first_key + window < first_query + BLOCK_M):
            scores = hide_outside_window(scores, queries[None, :], keys[:, None], window, sinks)
        total_k, total_v = add_gradient_of_keys(
            scores, scale_log2_e, q_values, v_values, grad_values, row_lse, row_delta, total_k, total_v
        )
    row = batch * tl.num_programs(1) + kv_head
    store_tile(grad_k + row * length * HEAD_DIM, first_key, length, total_k * scale)
    store_tile(grad_v + row * length * HEAD_DIM, first_key, length, total_v)


def _backward(
    inputs: tuple[torch.Tensor, ...],
    output: torch.Tensor,
    lse: torch.Tensor,
    grad_output: torch.Tensor,
    sizes: AttentionSizes,
    lengths: tuple[int, int, int],
    scale: float,
) -> tuple[torch.Tensor, ...]:
    """Compute the gradients of q, k and v, contiguous. `grad_output` may have any strides."""
    grad_q, grad_k, grad_v = (tensor.new_empty(tensor.shape) for tensor in inputs)
    (grad_output,) = rows_in_one_piece(grad_output)
    delta = torch.empty_like(lse)
    if sizes.rows:
        tiles = shipped(grad_q.dtype, sizes.head_dim)
        numbers = (*strides(*inputs, grad_output), *lengths, sizes.group, scale, scale * LOG2_E)
        sliding_window_grad_q_kernel[triton.cdiv(sizes.queries, tiles.grad_q.rows), sizes.heads, sizes.batch](
            *inputs, output, grad_output, lse, delta, grad_q, *numbers, **tiles.grad_q.options(sizes.head_dim)
        )
        sliding_window_grad_k_v_kernel[triton.cdiv(sizes.queries, tiles.grad_k_v.keys), sizes.kv_heads, sizes.batch](
            *inputs, grad_output, lse, delta, grad_k, grad_v, *numbers, **tiles.grad_k_v.options(sizes.head_dim)
        )
    return grad_q, grad_k, grad_v
