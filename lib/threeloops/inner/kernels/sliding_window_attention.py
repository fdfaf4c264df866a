"""Sliding-window attention, forward: query i sees the `window` latest keys, i − window < j ≤ i, and tiles that hold
none of them are not visited at all.

Sources: Child et al., "Generating Long Sequences with Sparse Transformers" (2019), arXiv:1904.10509; Beltagy, Peters
and Cohan, "Longformer" (2020), arXiv:2004.05150; the tiles are those of `flash_attention`. Sinks, a few first keys that
stay visible for good, because heads park there what they have no use for: Xiao et al., "Efficient Streaming Language
Models with Attention Sinks" (2023), arXiv:2309.17453.

A mask makes scores −inf; it does not make them cheaper. Here the window bounds the loop: of N/BLOCK_N tiles of keys a
program visits about (window + BLOCK_M)/BLOCK_N, and masks only those that the window's two edges cross. Traffic and
FLOPs then grow with N·window instead of N² (`sliding_window_traffic` has the exact counts).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from threeloops.inner.kernels import arguments
from threeloops.inner.kernels.attention_sizes import sizes_of
from threeloops.inner.kernels.sliding_window_attention_backward import sliding_window_attention_backward
from threeloops.inner.kernels.sliding_window_traffic import backward_cost, cost
from threeloops.inner.kernels.sparse_attention_configuration import shipped, strides, with_whole_rows
from threeloops.inner.kernels.sparse_tiles import finish, hide_outside_window, load_tile, store_tile, take_tile
from threeloops.inner.kernels.tiles import LOG2_E

__all__ = ["backward_cost", "cost", "reference", "sliding_window_attention", "sliding_window_attention_forward"]


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
    """Causal attention to the `window` latest keys, a query's own included: q (batch, heads, sequence, head_dim) → the
    same shape and dtype. Differentiable.

    Args:
        q, k, v: fp16, bf16 or float32; head_dim 16, 32, 64 or 128. k and v may have fewer heads, a divisor of q's. Any
            strides of batch, heads and sequence; a tensor whose rows are scattered is copied.
        window: at least 1.
        sinks: so many of the first keys stay visible to all later queries.
        softmax_scale: 1/√head_dim by default.

    Raises ValueError for what cannot be computed.
    """
    softmax_scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    return SlidingWindowAttention.apply(q, k, v, window, sinks, softmax_scale)


class SlidingWindowAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, sinks: int, scale: float
    ) -> torch.Tensor:
        ctx.options = window, sinks, scale
        output, lse = sliding_window_attention_forward(q, k, v, window, sinks, scale)
        ctx.save_for_backward(q, k, v, output, lse)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, output, lse = ctx.saved_tensors
        gradients = sliding_window_attention_backward(q, k, v, output, lse, grad_output, *ctx.options)
        return *gradients, None, None, None


def sliding_window_attention_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, sinks: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and each query's log-sum-exp to the base 2, float32 (batch, heads, sequence)."""
    sizes = sizes_of(q, k, v, scale)
    arguments.require_shape("k", k, (*k.shape[:2], sizes.queries, sizes.head_dim), "as long as q")
    if window < 1 or sinks < 0:
        raise ValueError(f"window = {window}, sinks = {sinks}: expected a window of 1 key or more, and 0 sinks or more")
    q, k, v = (with_whole_rows(each) for each in (q, k, v))
    output = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if not sizes.no_queries:
        chosen = shipped(q.dtype, sizes.head_dim).forward
        sliding_window_attention_kernel[triton.cdiv(sizes.queries, chosen.rows), sizes.heads, sizes.batch](
            q, k, v, output, lse, *strides(q, k, v),
            sizes.queries, min(window, sizes.queries), min(sinks, sizes.queries), sizes.group, scale * LOG2_E,
            **chosen.options(sizes.head_dim),
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
    """The same in PyTorch: its attention under a mask, which computes every score and hides most."""
    position = torch.arange(q.shape[2], device=q.device)
    ago = position[:, None] - position[None, :]
    visible = (ago >= 0) & ((ago < window) | (position < sinks)[None, :])
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, scale=softmax_scale, enable_gqa=q.shape[1] != k.shape[1]
    )
