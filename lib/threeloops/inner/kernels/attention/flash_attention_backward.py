"""FlashAttention-2, backward: the scores are computed again, tile by tile, instead of being kept.

Source: Dao, "FlashAttention-2" (2023), https://arxiv.org/abs/2307.08691, algorithm 2.

With the log-sum-exp of each row, P = exp(S − lse) needs no second softmax. dV = Pᵀ dO and dP = dO Vᵀ; the softmax
gives dS = P ∘ (dP − delta), where delta is the row sum of dO ∘ O; then dQ = dS K and dK = dSᵀ Q, both times the scale.

A first kernel prepares delta. A second walks over the queries for each tile of keys and sums dK and dV, for all query
heads that share them; a third walks over the keys for each tile of queries and sums dQ. So every sum has one owner: no
atomics, and the same bits in every run.
"""

import torch
import triton
import triton.language as tl

from threeloops.inner.kernels.attention.sizes import (
    heaviest_first,
    rows_in_one_piece,
    shipped,
    sizes_of,
    strides,
    visible_keys,
)
from threeloops.inner.kernels.launching import LOG2_E

__all__ = ["backward", "backward_operator", "key_gradient_kernel", "prepare_rows_kernel", "query_gradient_kernel"]


@triton.jit
def query_gradient_kernel(
    q, k, v, output_gradient, lse, delta, q_gradient,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, stride_dqb, stride_dqh, stride_dqn,
    queries, padded_queries, keys, group, scale, softmax_scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, KEYS_ARE_WHOLE: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dQ of one tile of queries, summed over the keys that it sees."""
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    first_query = heaviest_first(tl.program_id(0), tl.num_programs(0), CAUSAL) * BLOCK_M
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    channels = tl.arange(0, HEAD_DIM)
    exists = rows < queries - first_query
    q += batch * stride_qb + head * stride_qh + tl.cast(first_query, tl.int64) * stride_qn
    output_gradient += batch * stride_gb + head * stride_gh + tl.cast(first_query, tl.int64) * stride_gn
    k += batch * stride_kb + (head // group) * stride_kh
    v += batch * stride_vb + (head // group) * stride_vh
    k_offsets = columns[:, None] * stride_kn + channels[None, :]
    v_offsets = columns[:, None] * stride_vn + channels[None, :]
    row = (batch * tl.num_programs(1) + head) * padded_queries + first_query
    q_tile = q + (rows[:, None] * stride_qn + channels[None, :])
    gradient_tile = output_gradient + (rows[:, None] * stride_gn + channels[None, :])
    q_values = tl.load(q_tile, mask=exists[:, None], other=0.0)
    gradient = tl.load(gradient_tile, mask=exists[:, None], other=0.0)
    row_lse = tl.load(lse + row + rows)
    row_delta = tl.load(delta + row + rows)

    last_visible, seen_by_all, seen_by_any = visible_keys(first_query, queries, keys, BLOCK_M, CAUSAL)
    q_sum = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for start in range(0, seen_by_any, BLOCK_N):
        if KEYS_ARE_WHOLE:
            k_values = tl.load(k + k_offsets)
            v_values = tl.load(v + v_offsets)
        else:
            key_exists = (columns < keys - start)[:, None]
            k_values = tl.load(k + k_offsets, mask=key_exists, other=0.0)
            v_values = tl.load(v + v_offsets, mask=key_exists, other=0.0)
        scores = tl.dot(q_values, k_values.T, input_precision=INPUT_PRECISION)
        weight_gradient = tl.dot(gradient, v_values.T, input_precision=INPUT_PRECISION)
        weights = tl.exp2(scores * scale - row_lse[:, None])
        if CAUSAL or not KEYS_ARE_WHOLE:  # noqa: SIM102 (known when compiled; what follows, when the kernel runs)
            if start + BLOCK_N > seen_by_all:
                weights = tl.where((start + columns)[None, :] <= last_visible[:, None], weights, 0.0)
        score_gradient = weights * (weight_gradient - row_delta[:, None])
        q_sum = tl.dot(score_gradient.to(k_values.dtype), k_values, q_sum, input_precision=INPUT_PRECISION)
        k += BLOCK_N * stride_kn
        v += BLOCK_N * stride_vn

    q_gradient += batch * stride_dqb + head * stride_dqh + tl.cast(first_query, tl.int64) * stride_dqn
    q_tile = q_gradient + (rows[:, None] * stride_dqn + channels[None, :])
    tl.store(q_tile, (q_sum * softmax_scale).to(q_gradient.dtype.element_ty), mask=exists[:, None])


@triton.jit
def key_gradient_kernel(
    q, k, v, output_gradient, lse, delta, k_gradient, v_gradient,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh, stride_dvn,
    queries, padded_queries, keys, group, scale, softmax_scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, QUERIES_ARE_WHOLE: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dK and dV of one tile of keys, summed over the queries that see it, for each head of the group in turn.

    Everything is transposed, keys down and queries across, so that P and dS are the left factors of the next products
    as they lie in registers and never pass through shared memory. Rows past the last query read as zeros, also in dO,
    and so add nothing.
    """
    first_key = tl.program_id(0) * BLOCK_N
    kv_head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    channels = tl.arange(0, HEAD_DIM)
    key_exists = (columns < keys - first_key)[:, None]
    k += batch * stride_kb + kv_head * stride_kh + tl.cast(first_key, tl.int64) * stride_kn
    v += batch * stride_vb + kv_head * stride_vh + tl.cast(first_key, tl.int64) * stride_vn
    k_values = tl.load(k + (columns[:, None] * stride_kn + channels[None, :]), mask=key_exists, other=0.0)
    v_values = tl.load(v + (columns[:, None] * stride_vn + channels[None, :]), mask=key_exists, other=0.0)

    q += batch * stride_qb + kv_head * group * stride_qh
    output_gradient += batch * stride_gb + kv_head * group * stride_gh
    lse += (batch * tl.num_programs(1) + kv_head) * group * padded_queries
    delta += (batch * tl.num_programs(1) + kv_head) * group * padded_queries
    q_offsets = rows[:, None] * stride_qn + channels[None, :]
    gradient_offsets = rows[:, None] * stride_gn + channels[None, :]

    first_query = 0
    if CAUSAL:
        diagonal = first_key - (keys - queries)
        first_query = tl.maximum(diagonal, 0) // BLOCK_M * BLOCK_M
    tiles = tl.cdiv(tl.maximum(queries - first_query, 0), BLOCK_M)
    k_sum = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    v_sum = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    head = tl.cast(0, tl.int64)
    start = first_query
    for _ in range(group * tiles):
        q_tile = q + head * stride_qh + tl.cast(start, tl.int64) * stride_qn + q_offsets
        gradient_tile = output_gradient + head * stride_gh + tl.cast(start, tl.int64) * stride_gn + gradient_offsets
        row = head * padded_queries + start
        if QUERIES_ARE_WHOLE:
            q_values = tl.load(q_tile)
            gradient = tl.load(gradient_tile)
        else:
            query_exists = (rows < queries - start)[:, None]
            q_values = tl.load(q_tile, mask=query_exists, other=0.0)
            gradient = tl.load(gradient_tile, mask=query_exists, other=0.0)
        scores = tl.dot(k_values, q_values.T, input_precision=INPUT_PRECISION)
        weight_gradient = tl.dot(v_values, gradient.T, input_precision=INPUT_PRECISION)
        weights = tl.exp2(scores * scale - tl.load(lse + row + rows)[None, :])
        if CAUSAL:  # noqa: SIM102 (known when the kernel is compiled; what follows, only when it runs)
            if start < diagonal + BLOCK_N - 1:
                weights = tl.where((diagonal + columns)[:, None] <= (start + rows)[None, :], weights, 0.0)
        score_gradient = weights * (weight_gradient - tl.load(delta + row + rows)[None, :])
        v_sum = tl.dot(weights.to(gradient.dtype), gradient, v_sum, input_precision=INPUT_PRECISION)
        k_sum = tl.dot(score_gradient.to(q_values.dtype), q_values, k_sum, input_precision=INPUT_PRECISION)
        start += BLOCK_M
        if start >= queries:
            start = first_query
            head += 1

    k_gradient += batch * stride_dkb + kv_head * stride_dkh + tl.cast(first_key, tl.int64) * stride_dkn
    v_gradient += batch * stride_dvb + kv_head * stride_dvh + tl.cast(first_key, tl.int64) * stride_dvn
    k_tile = k_gradient + (columns[:, None] * stride_dkn + channels[None, :])
    v_tile = v_gradient + (columns[:, None] * stride_dvn + channels[None, :])
    tl.store(k_tile, (k_sum * softmax_scale).to(k_gradient.dtype.element_ty), mask=key_exists)
    tl.store(v_tile, v_sum.to(v_gradient.dtype.element_ty), mask=key_exists)


_ROWS = 128
"""The rows' log-sum-exp and delta are padded to a multiple of this, which is a multiple of every BLOCK_M."""
_PREPARED_ROWS = 32
"""Rows per program of the first kernel."""


@triton.jit
def prepare_rows_kernel(
    output, output_gradient, lse, lse_gradient, padded_lse, delta,
    stride_ob, stride_oh, stride_on, stride_gb, stride_gh, stride_gn, queries, padded_queries,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Compute lse · log₂e and delta = rowsum(dO ∘ O) − dlse for each row, padded with zeros so that the other kernels
    can read whole tiles without a mask."""
    first_query = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    rows = tl.arange(0, BLOCK_M)
    channels = tl.arange(0, HEAD_DIM)
    exists = rows < queries - first_query
    output += batch * stride_ob + head * stride_oh + tl.cast(first_query, tl.int64) * stride_on
    output_gradient += batch * stride_gb + head * stride_gh + tl.cast(first_query, tl.int64) * stride_gn
    output_tile = output + (rows[:, None] * stride_on + channels[None, :])
    gradient_tile = output_gradient + (rows[:, None] * stride_gn + channels[None, :])
    values = tl.load(output_tile, mask=exists[:, None], other=0.0).to(tl.float32)
    gradient = tl.load(gradient_tile, mask=exists[:, None], other=0.0).to(tl.float32)
    sums = tl.sum(values * gradient, 1)
    row = (batch * tl.num_programs(1) + head) * queries + first_query
    if lse_gradient is not None:
        sums -= tl.load(lse_gradient + row + rows, mask=exists, other=0.0)
    scaled_lse = tl.load(lse + row + rows, mask=exists, other=0.0) * 1.4426950408889634
    padded_row = (batch * tl.num_programs(1) + head) * padded_queries + first_query
    tl.store(padded_lse + padded_row + rows, scaled_lse)
    tl.store(delta + padded_row + rows, sums)


def backward(
    output_gradient: torch.Tensor,
    lse_gradient: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    output: torch.Tensor,
    lse: torch.Tensor,
    causal: bool,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute dq, dk and dv, each laid out like its input, from the arguments and results of `flash_attention`.

    `output_gradient` has the shape of the output. `lse_gradient` has the shape of the log-sum-exp, or is None for zero.
    """
    sizes = sizes_of(q, k, v, softmax_scale)
    q, k, v, output, output_gradient = rows_in_one_piece(q, k, v, output, output_gradient)
    q_gradient, k_gradient, v_gradient = (torch.empty_like(tensor) for tensor in (q, k, v))
    if not sizes.rows or not sizes.kv_rows:
        return q_gradient.zero_(), k_gradient.zero_(), v_gradient.zero_()
    padded_queries = triton.cdiv(sizes.queries, _ROWS) * _ROWS
    padded_lse, delta = lse.new_empty(2, sizes.batch, sizes.heads, padded_queries)
    prepare_rows_kernel[(padded_queries // _PREPARED_ROWS, sizes.heads, sizes.batch)](
        output, output_gradient, lse, None if lse_gradient is None else lse_gradient.contiguous(), padded_lse, delta,
        *strides(output, output_gradient), sizes.queries, padded_queries,
        HEAD_DIM=sizes.head_dim, BLOCK_M=_PREPARED_ROWS, num_warps=8,
    )  # fmt: skip
    inputs = (q, k, v, output_gradient, padded_lse, delta)
    numbers = (sizes.queries, padded_queries, sizes.keys, sizes.group, softmax_scale * LOG2_E, softmax_scale)

    tiles = shipped(q.dtype, sizes.head_dim).grad_k_v
    key_gradient_kernel[triton.cdiv(sizes.keys, tiles.keys), sizes.kv_heads, sizes.batch](
        *inputs, k_gradient, v_gradient, *strides(q, k, v, output_gradient, k_gradient, v_gradient), *numbers,
        CAUSAL=causal, QUERIES_ARE_WHOLE=sizes.queries % tiles.rows == 0, INPUT_PRECISION="ieee",
        **tiles.options(sizes.head_dim),
    )  # fmt: skip
    tiles = shipped(q.dtype, sizes.head_dim).grad_q
    query_gradient_kernel[triton.cdiv(sizes.queries, tiles.rows), sizes.heads, sizes.batch](
        *inputs, q_gradient, *strides(q, k, v, output_gradient, q_gradient), *numbers,
        CAUSAL=causal, KEYS_ARE_WHOLE=sizes.keys % tiles.keys == 0, INPUT_PRECISION="ieee",
        **tiles.options(sizes.head_dim),
    )  # fmt: skip
    return q_gradient, k_gradient, v_gradient


backward_operator = torch.library.custom_op("threeloops::flash_attention_backward", backward, mutates_args=())
"""`backward` as one node of the graph that torch.compile traces."""


@backward_operator.register_fake
def _(output_gradient, lse_gradient, q, k, v, output, lse, causal, softmax_scale):
    q, k, v = rows_in_one_piece(q, k, v)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
