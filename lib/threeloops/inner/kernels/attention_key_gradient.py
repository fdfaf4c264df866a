"""FlashAttention-2, backwards, for keys and values: each tile of keys asks all queries that saw it.

dV = Pᵀ dO and dK = dSᵀ Q · scale. Everything is kept transposed, keys down and queries across, so that P and dS leave
the registers as the left factor of a product and never pass through shared memory. See `flash_attention_backward`.
"""

import triton
import triton.language as tl


@triton.jit
def key_gradient_kernel(
    q, k, v, output_gradient, lse, delta, k_gradient, v_gradient,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, stride_dkb, stride_dkh, stride_dkn, stride_dvb, stride_dvh, stride_dvn,
    queries, padded_queries, keys, group, scale, softmax_scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, QUERIES_ARE_WHOLE: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """dK and dV of one tile of keys, summed over the queries that saw it, head after head of its group.

    Rows beyond the last query read as zeros, dO with them, and so send nothing.
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
