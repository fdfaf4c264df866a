"""Sliding-window attention, backward: gradients of q, k and v, tiles outside the window not visited here either.

Two kernels, as in FlashAttention-2: one walks along the keys of its queries and sums dq, the other along the queries
that see its keys, those of all heads that share them, and sums dk and dv. Each owns what it sums, so nothing is atomic
and every run gives the same bits. The first also leaves delta, each row's grad_output·output, for the second.
"""

import torch
import triton
import triton.language as tl

from threeloops.inner.kernels.attention_sizes import sizes_of
from threeloops.inner.kernels.sparse_attention_configuration import shipped, strides, with_whole_rows
from threeloops.inner.kernels.sparse_tiles import (
    add_gradient_of_keys,
    add_gradient_of_queries,
    hide_outside_window,
    load_tile,
    store_tile,
)
from threeloops.inner.kernels.tiles import LOG2_E


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


def sliding_window_attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    output: torch.Tensor,
    lse: torch.Tensor,
    grad_output: torch.Tensor,
    window: int,
    sinks: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v, contiguous.

    Args:
        q, k, v, window, sinks, scale: as `sliding_window_attention_forward` took them.
        output, lse: what it returned.
        grad_output: gradient of output, any strides.
    """
    sizes = sizes_of(q, k, v, scale)
    q, k, v, grad_output = (with_whole_rows(each) for each in (q, k, v, grad_output))
    grad_q, grad_k, grad_v = (torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in (q, k, v))
    delta = torch.empty_like(lse)
    if sizes.no_queries:
        return grad_q, grad_k, grad_v
    chosen = shipped(q.dtype, sizes.head_dim)
    lengths = sizes.queries, min(window, sizes.queries), min(sinks, sizes.queries)
    numbers = (*strides(q, k, v, grad_output), *lengths, sizes.group, scale, scale * LOG2_E)
    sliding_window_grad_q_kernel[triton.cdiv(sizes.queries, chosen.grad_q.rows), sizes.heads, sizes.batch](
        q, k, v, output, grad_output, lse, delta, grad_q, *numbers, **chosen.grad_q.options(sizes.head_dim)
    )
    sliding_window_grad_k_v_kernel[triton.cdiv(sizes.queries, chosen.grad_k_v.keys), sizes.kv_heads, sizes.batch](
        q, k, v, grad_output, lse, delta, grad_k, grad_v, *numbers, **chosen.grad_k_v.options(sizes.head_dim)
    )
    return grad_q, grad_k, grad_v
