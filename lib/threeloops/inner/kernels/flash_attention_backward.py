"""FlashAttention-2, backwards: the scores are computed again, tile by tile, instead of being kept.

Source: Dao, "FlashAttention-2" (2023), https://arxiv.org/abs/2307.08691, algorithm 2.

With the log-sum-exp of each row, P = exp(S − lse) needs no softmax over again. dV = Pᵀ dO and dP = dO Vᵀ; the softmax
gives dS = P ∘ (dP − delta), where delta is the row sum of dO ∘ O; then dQ = dS K and dK = dSᵀ Q, both times the scale.
One kernel walks over the queries for each tile of keys and sums dK and dV, for all query heads that share them; a
second walks over the keys for each tile of queries and sums dQ. So every sum has one owner: no atomics, the same bits
every time.
"""

import torch
import triton
import triton.language as tl

from threeloops.inner.kernels.attention_key_gradient import key_gradient_kernel
from threeloops.inner.kernels.attention_query_gradient import query_gradient_kernel
from threeloops.inner.kernels.attention_sizes import LOG2_E, rows_in_one_piece, sizes_of
from threeloops.inner.kernels.attention_tiles import key_gradient_tiles, query_gradient_tiles

ROWS = 128
"""What rows are padded to; a multiple of every BLOCK_M."""
PREPARED_ROWS = 32
"""Of one program of the first kernel."""


@triton.jit
def prepare_rows_kernel(
    output, output_gradient, lse, lse_gradient, padded_lse, delta,
    stride_ob, stride_oh, stride_on, stride_gb, stride_gh, stride_gn, queries, padded_queries,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """For each row lse · log₂e and delta = rowsum(dO ∘ O) − dlse, with zeros up to a multiple of BLOCK_M rows: the
    other kernels read whole tiles of them and need no mask."""
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
    """dq, dk and dv, each laid out like its input, from what `flash_attention` took and gave.

    `output_gradient` has the shape of the output, `lse_gradient` that of the log-sum-exp, or is None for zero.
    """
    sizes = sizes_of(q, k, v, softmax_scale)
    q, k, v, output, output_gradient = rows_in_one_piece(q, k, v, output, output_gradient)
    q_gradient, k_gradient, v_gradient = (torch.empty_like(each) for each in (q, k, v))
    if sizes.no_queries or sizes.no_keys:
        return q_gradient.zero_(), k_gradient.zero_(), v_gradient.zero_()
    padded_queries = triton.cdiv(sizes.queries, ROWS) * ROWS
    padded_lse, delta = lse.new_empty(2, sizes.batch, sizes.heads, padded_queries)
    prepare_rows_kernel[(padded_queries // PREPARED_ROWS, sizes.heads, sizes.batch)](
        output, output_gradient, lse, None if lse_gradient is None else lse_gradient.contiguous(), padded_lse, delta,
        *output.stride()[:3], *output_gradient.stride()[:3], sizes.queries, padded_queries,
        HEAD_DIM=sizes.head_dim,
        BLOCK_M=PREPARED_ROWS,
        num_warps=8,
    )  # fmt: skip
    inputs = (q, k, v, output_gradient, padded_lse, delta)
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *output_gradient.stride()[:3])
    numbers = (sizes.queries, padded_queries, sizes.keys, sizes.group, softmax_scale * LOG2_E, softmax_scale)
    constants = {"HEAD_DIM": sizes.head_dim, "CAUSAL": causal, "INPUT_PRECISION": "ieee"}

    tiles = key_gradient_tiles(sizes.head_dim, q.dtype)
    key_gradient_kernel[(triton.cdiv(sizes.keys, tiles.constants["BLOCK_N"]), sizes.kv_heads, sizes.batch)](
        *inputs, k_gradient, v_gradient, *strides, *k_gradient.stride()[:3], *v_gradient.stride()[:3], *numbers,
        QUERIES_ARE_WHOLE=sizes.queries % tiles.constants["BLOCK_M"] == 0,
        **constants,
        **tiles.options(),
    )  # fmt: skip
    tiles = query_gradient_tiles(sizes.head_dim, q.dtype)
    query_gradient_kernel[(triton.cdiv(sizes.queries, tiles.constants["BLOCK_M"]), sizes.heads, sizes.batch)](
        *inputs, q_gradient, *strides, *q_gradient.stride()[:3], *numbers,
        KEYS_ARE_WHOLE=sizes.keys % tiles.constants["BLOCK_N"] == 0,
        **constants,
        **tiles.options(),
    )  # fmt: skip
    return q_gradient, k_gradient, v_gradient


@torch.library.custom_op("threeloops::flash_attention_backward", mutates_args=())
def backward_operator(
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
    """`backward` as one node of the graph that torch.compile traces."""
    return backward(output_gradient, lse_gradient, q, k, v, output, lse, causal, softmax_scale)


@backward_operator.register_fake
def _(output_gradient, lse_gradient, q, k, v, output, lse, causal, softmax_scale):
    q, k, v = rows_in_one_piece(q, k, v)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
