"""Block-sparse attention: each block of queries sees the blocks of keys that a mask names, and no others.

Sources: Child et al., "Generating Long Sequences with Sparse Transformers" (2019), arXiv:1904.10509; Zaheer et al.,
"Big Bird" (2020), arXiv:2007.14062; the tiles are those of `flash_attention`, the lists those of `block_mask`.

A program reads the list of its tiles of keys and takes them into its softmax one by one. A tile that is not on the list
costs nothing: no load, no product. Scores are masked only inside tiles on the diagonal, if attention is causal, and
past the last key. Any pattern of blocks will do: local, strided, global, random, documents packed into one sequence.

The backward pass is that of `sliding_window_attention`: the kernel for dq walks along the lists of the forward pass,
the kernel for dk and dv along those of the transposed mask, without atomics. A key that no query sees has a gradient
of 0.
"""

import torch
import triton
import triton.language as tl

from threeloops.inner.kernels.attention.sizes import AttentionNode, AttentionSizes, rows_in_one_piece, sizes_of, strides
from threeloops.inner.kernels.launching import LOG2_E
from threeloops.inner.kernels.sparse.block_mask import BlockMask
from threeloops.inner.kernels.sparse.block_sparse_traffic import backward_cost, cost
from threeloops.inner.kernels.sparse.tiles import (
    add_gradient_of_keys,
    add_gradient_of_queries,
    finish,
    hide_absent,
    load_tile,
    shipped,
    store_tile,
    take_tile,
)

__all__ = [
    "BlockMask", "attend", "backward_cost", "block_sparse_attention", "block_sparse_attention_kernel",
    "block_sparse_grad_k_v_kernel", "block_sparse_grad_q_kernel", "cost", "reference", "visible_positions",
]  # fmt: skip


@triton.jit
def block_sparse_attention_kernel(
    q, k, v, output, lse, starts, columns,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    queries, keys, rows_per_head, group, scale,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    first_query = tl.program_id(0) * BLOCK_M
    k += batch * stride_kb + head // group * stride_kh
    v += batch * stride_vb + head // group * stride_vh
    q_values = load_tile(q + batch * stride_qb + head * stride_qh, first_query, queries, stride_qn, BLOCK_M, HEAD_DIM)
    at_query = first_query + tl.arange(0, BLOCK_M)

    maximum = tl.full((BLOCK_M,), -3.4e38, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    values = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    start = starts + head * rows_per_head + tl.program_id(0)
    for index in range(tl.load(start), tl.load(start + 1)):
        first_key = tl.load(columns + index) * BLOCK_N
        k_values = load_tile(k, first_key, keys, stride_kn, BLOCK_N, HEAD_DIM)
        v_values = load_tile(v, first_key, keys, stride_vn, BLOCK_N, HEAD_DIM)
        scores = tl.dot(q_values, k_values.T, input_precision="ieee")
        end_key = first_key + BLOCK_N
        crossed = end_key > keys
        if CAUSAL:
            crossed = crossed | (end_key - 1 > first_query)
        if crossed:
            at_key = first_key + tl.arange(0, BLOCK_N)
            scores = hide_absent(scores, at_query[:, None], at_key[None, :], keys, CAUSAL)
        maximum, total, values = take_tile(scores, scale, v_values, maximum, total, values)

    values, log_sum = finish(maximum, total, values)
    row = batch * tl.num_programs(1) + head
    store_tile(output + row * queries * HEAD_DIM, first_query, queries, values)
    tl.store(lse + row * queries + at_query, log_sum, mask=at_query < queries)


def block_sparse_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: BlockMask, *, softmax_scale: float | None = None
) -> torch.Tensor:
    """Attend from each block of queries to the blocks of keys that `mask` names: q (batch, heads, queries, head_dim) →
    the same shape and dtype. Queries that see no keys get 0. Differentiable.

    Args:
        q, k, v: fp16, bf16 or float32; head_dim 16, 32, 64 or 128. k and v, (batch, heads, keys, head_dim), may have
            fewer heads, a divisor of q's. Any strides of batch, heads and sequence are allowed. A tensor whose rows are
            scattered is copied.
        mask: one for all heads, or one for each head of q. A causal one needs as many queries as keys.
        softmax_scale: 1/√head_dim by default.

    Raises ValueError for arguments that cannot be computed.
    """
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    sizes = sizes_of(q, k, v, scale)
    mask.require_fits(sizes)
    return AttentionNode.apply(_forward, _backward, (mask, sizes, scale), *rows_in_one_piece(q, k, v))


def _forward(
    inputs: tuple[torch.Tensor, ...], mask: BlockMask, sizes: AttentionSizes, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and each query's log-sum-exp to the base 2, float32 (batch, heads, queries), or −inf if it sees
    none."""
    q = inputs[0]
    output, lse = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)
    if sizes.rows:
        tiles = mask.divided(shipped(q.dtype, sizes.head_dim).forward)
        lists = mask.lists(sizes, tiles, q.device)
        block_sparse_attention_kernel[triton.cdiv(sizes.queries, tiles.rows), sizes.heads, sizes.batch](
            *inputs, output, lse, lists.starts, lists.columns, *strides(*inputs),
            sizes.queries, sizes.keys, lists.rows_per_head, sizes.group, scale * LOG2_E,
            CAUSAL=mask.causal, **tiles.options(sizes.head_dim),
        )  # fmt: skip
    return output, lse


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: BlockMask, *, softmax_scale: float | None = None
) -> torch.Tensor:
    """Compute the same in PyTorch, whose attention takes a mask of single positions."""
    visible, sees_nothing = visible_positions(mask, q.shape[2], k.shape[2], q.device)
    return attend(q, k, v, visible, sees_nothing, softmax_scale=softmax_scale)


def visible_positions(
    mask: BlockMask, queries: int, keys: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which positions attend, (1, 1 or heads, queries, keys), and which queries attend to none: these see all
    here."""
    visible = mask.by_position(queries, keys).to(device)
    sees_nothing = ~visible.any(-1, keepdim=True)
    return visible | sees_nothing, sees_nothing


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor,
    sees_nothing: torch.Tensor,
    *,
    softmax_scale: float | None = None,
) -> torch.Tensor:
    # PyTorch gives NaN for a query that sees nothing: let it see everything, then set its output to 0.
    output = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, scale=softmax_scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return output.masked_fill(sees_nothing, 0.0)


@triton.jit
def block_sparse_grad_q_kernel(
    q, k, v, output, grad_output, lse, delta, grad_q, starts, columns,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, queries, keys, rows_per_head, group, scale, scale_log2_e,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    row = batch * tl.num_programs(1) + head
    first_query = tl.program_id(0) * BLOCK_M
    k += batch * stride_kb + head // group * stride_kh
    v += batch * stride_vb + head // group * stride_vh
    q_values = load_tile(q + batch * stride_qb + head * stride_qh, first_query, queries, stride_qn, BLOCK_M, HEAD_DIM)
    grad_output += batch * stride_gb + head * stride_gh
    grad_values = load_tile(grad_output, first_query, queries, stride_gn, BLOCK_M, HEAD_DIM)
    values = load_tile(output + row * queries * HEAD_DIM, first_query, queries, HEAD_DIM, BLOCK_M, HEAD_DIM)
    at_query = first_query + tl.arange(0, BLOCK_M)
    row_delta = tl.sum(values.to(tl.float32) * grad_values, 1)
    tl.store(delta + row * queries + at_query, row_delta, mask=at_query < queries)
    row_lse = tl.load(lse + row * queries + at_query, mask=at_query < queries, other=float("inf"))

    total = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    start = starts + head * rows_per_head + tl.program_id(0)
    for index in range(tl.load(start), tl.load(start + 1)):
        first_key = tl.load(columns + index) * BLOCK_N
        k_values = load_tile(k, first_key, keys, stride_kn, BLOCK_N, HEAD_DIM)
        v_values = load_tile(v, first_key, keys, stride_vn, BLOCK_N, HEAD_DIM)
        scores = tl.dot(q_values, k_values.T, input_precision="ieee")
        end_key = first_key + BLOCK_N
        crossed = end_key > keys
        if CAUSAL:
            crossed = crossed | (end_key - 1 > first_query)
        if crossed:
            at_key = first_key + tl.arange(0, BLOCK_N)
            scores = hide_absent(scores, at_query[:, None], at_key[None, :], keys, CAUSAL)
        total = add_gradient_of_queries(
            scores, scale_log2_e, k_values, v_values, grad_values, row_lse, row_delta, total
        )
    store_tile(grad_q + row * queries * HEAD_DIM, first_query, queries, total * scale)


@triton.jit
def block_sparse_grad_k_v_kernel(
    q, k, v, grad_output, lse, delta, grad_k, grad_v, starts, columns,
    stride_qb, stride_qh, stride_qn, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, queries, keys, rows_per_head, group, scale, scale_log2_e,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    first_key = tl.program_id(0) * BLOCK_N
    at_key = first_key + tl.arange(0, BLOCK_N)
    k_values = load_tile(k + batch * stride_kb + kv_head * stride_kh, first_key, keys, stride_kn, BLOCK_N, HEAD_DIM)
    v_values = load_tile(v + batch * stride_vb + kv_head * stride_vh, first_key, keys, stride_vn, BLOCK_N, HEAD_DIM)

    total_k = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    total_v = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    for member in range(group):
        head = kv_head * group + member
        row = batch * tl.num_programs(1) * group + head
        q_head = q + batch * stride_qb + head * stride_qh
        grad_head = grad_output + batch * stride_gb + head * stride_gh
        start = starts + head * rows_per_head + tl.program_id(0)
        for index in range(tl.load(start), tl.load(start + 1)):
            first_query = tl.load(columns + index) * BLOCK_M
            at_query = first_query + tl.arange(0, BLOCK_M)
            q_values = load_tile(q_head, first_query, queries, stride_qn, BLOCK_M, HEAD_DIM)
            grad_values = load_tile(grad_head, first_query, queries, stride_gn, BLOCK_M, HEAD_DIM)
            row_lse = tl.load(lse + row * queries + at_query, mask=at_query < queries, other=float("inf"))
            row_delta = tl.load(delta + row * queries + at_query, mask=at_query < queries, other=0.0)
            # Keys past the end need no mask: their rows of dk and dv are not stored.
            scores = tl.dot(k_values, q_values.T, input_precision="ieee")
            if first_key + BLOCK_N - 1 > first_query:
                scores = hide_absent(scores, at_query[None, :], at_key[:, None], keys, CAUSAL)
            total_k, total_v = add_gradient_of_keys(
                scores, scale_log2_e, q_values, v_values, grad_values, row_lse, row_delta, total_k, total_v
            )
    row = batch * tl.num_programs(1) + kv_head
    store_tile(grad_k + row * keys * HEAD_DIM, first_key, keys, total_k * scale)
    store_tile(grad_v + row * keys * HEAD_DIM, first_key, keys, total_v)


def _backward(
    inputs: tuple[torch.Tensor, ...],
    output: torch.Tensor,
    lse: torch.Tensor,
    grad_output: torch.Tensor,
    mask: BlockMask,
    sizes: AttentionSizes,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    """Compute the gradients of q, k and v, contiguous. `grad_output` may have any strides."""
    grad_q, grad_k, grad_v = (tensor.new_empty(tensor.shape) for tensor in inputs)
    (grad_output,) = rows_in_one_piece(grad_output)
    delta = torch.empty_like(lse)
    numbers = *strides(*inputs, grad_output), sizes.queries, sizes.keys
    if sizes.rows:
        tiles = mask.divided(shipped(grad_q.dtype, sizes.head_dim).grad_q)
        lists = mask.lists(sizes, tiles, lse.device)
        block_sparse_grad_q_kernel[triton.cdiv(sizes.queries, tiles.rows), sizes.heads, sizes.batch](
            *inputs, output, grad_output, lse, delta, grad_q, lists.starts, lists.columns,
            *numbers, lists.rows_per_head, sizes.group, scale, scale * LOG2_E,
            CAUSAL=mask.causal, **tiles.options(sizes.head_dim),
        )  # fmt: skip
    if sizes.kv_rows:
        tiles = mask.divided(shipped(grad_q.dtype, sizes.head_dim).grad_k_v)
        lists = mask.lists(sizes, tiles, lse.device, transposed=True)
        block_sparse_grad_k_v_kernel[triton.cdiv(sizes.keys, tiles.keys), sizes.kv_heads, sizes.batch](
            *inputs, grad_output, lse, delta, grad_k, grad_v, lists.starts, lists.columns,
            *numbers, lists.rows_per_head, sizes.group, scale, scale * LOG2_E,
            CAUSAL=mask.causal, **tiles.options(sizes.head_dim),
        )  # fmt: skip
    return grad_q, grad_k, grad_v
