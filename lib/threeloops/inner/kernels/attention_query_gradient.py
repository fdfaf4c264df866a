"""FlashAttention-2, backwards, for queries: each tile of queries walks over the keys that it saw, as it did forwards.

dQ = dS K · scale. See `flash_attention_backward`.
"""

import triton
import triton.language as tl

from threeloops.inner.kernels.attention_mask import heaviest_first, visible_keys


@triton.jit
def query_gradient_kernel(
    q, k, v, output_gradient, lse, delta, q_gradient,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, stride_dqb, stride_dqh, stride_dqn,
    queries, padded_queries, keys, group, scale, softmax_scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, KEYS_ARE_WHOLE: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """dQ of one tile of queries, summed over the keys that it sees."""
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
