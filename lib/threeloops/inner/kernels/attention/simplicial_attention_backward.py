"""2-simplicial attention, backward: five gradients from three kernels, without atomics, so the same in every run.

Notation of `simplicial_attention`: a row is a pair (i, o) with k = i − o, and pair = q[i] ∘ k2[k]. Likewise the
gradient of a row's weights is a product with grad_pair = grad_out[i] ∘ v2[k]:

    weights = exp2(pair·k1[j] − lse[i])                     recomputed, never stored
    grad_logits = weights · (grad_pair·v1[j] − delta[i])    with delta[i] = grad_out[i]·out[i]
    by_keys[row] = Σ_j grad_logits·k1[j]                    by_values[row] = Σ_j weights·v1[j]

    dq[i] = scale · Σ_o k2[k] ∘ by_keys                     over the offsets of one query
    dk2[k] = scale · Σ_i q[i] ∘ by_keys                     over the queries that see one k
    dv2[k] = Σ_i grad_out[i] ∘ by_values
    dk1[j] = scale · Σ_rows grad_logits·pair                over the rows that see one j
    dv1[j] = Σ_rows weights·grad_pair

These are sums in three directions. To add up along another direction than its own, a program would need atomics, whose
order changes from run to run. So each direction has a kernel in which a program owns what it sums and recomputes the
weights: 6 + 8 + 8 FLOPs · head_dim per triple, where the forward pass takes 4 and a backward pass with atomics 12. If
heads share k2, or if the smaller window exceeds a tile's rows, PyTorch adds up the parts of a gradient.
"""

import torch
import triton
import triton.language as tl

from threeloops.inner.kernels.attention.simplicial_problem import (
    LOG2_E_CONSTANT,
    Problem,
    hide,
    load_rows,
    sum_rows,
    to_rows,
)

__all__ = [
    "gradients_of_rows", "simplicial_attention_backward", "simplicial_grad_k1_v1_kernel",
    "simplicial_grad_k2_v2_kernel", "simplicial_grad_q_kernel",
]  # fmt: skip


@triton.jit
def simplicial_grad_k1_v1_kernel(
    q, k1, k2, v1, v2, grad_out, lse, delta, grad_k1, grad_v1, length, window1, window2, scale,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Compute dk1 and dv1 of BLOCK_KEYS keys, over all pairs of all queries that may see one of them.

    Nothing is summed over the offsets of one query here, so a tile's rows may be any pairs. All pairs are numbered,
    query by query, and each tile takes the next ROWS of them, for any windows.
    """
    kv_head = tl.program_id(1).to(tl.int64)
    k2 += kv_head * length * HEAD_DIM
    v2 += kv_head * length * HEAD_DIM

    first_key = tl.program_id(0) * BLOCK_KEYS
    keys = first_key + tl.arange(0, BLOCK_KEYS)
    key_tile = load_rows(k1 + kv_head * length * HEAD_DIM, keys, keys < length, HEAD_DIM)
    value_tile = load_rows(v1 + kv_head * length * HEAD_DIM, keys, keys < length, HEAD_DIM)
    end_query = tl.minimum(first_key + BLOCK_KEYS - 1 + window1, length)
    total_k1 = tl.zeros((BLOCK_KEYS, HEAD_DIM), tl.float32)
    total_v1 = tl.zeros((BLOCK_KEYS, HEAD_DIM), tl.float32)
    for member in range(GROUP):
        head = kv_head * GROUP + member
        for first_row in range(0, (end_query - first_key) * window2, ROWS):
            row = first_row + tl.arange(0, ROWS)
            row_query = first_key + row // window2
            row_key2 = row_query - row % window2
            exists = (row_query < end_query) & (row_key2 >= 0)
            pair = load_rows(q + head * length * HEAD_DIM, row_query, exists, HEAD_DIM).to(tl.float32)
            pair = (pair * load_rows(k2, row_key2, exists, HEAD_DIM) * (scale * LOG2_E_CONSTANT)).to(
                k1.dtype.element_ty
            )
            grad_pair = load_rows(grad_out + head * length * HEAD_DIM, row_query, exists, HEAD_DIM).to(tl.float32)
            grad_pair = (grad_pair * load_rows(v2, row_key2, exists, HEAD_DIM)).to(k1.dtype.element_ty)
            row_lse = tl.load(lse + head * length + row_query, mask=exists, other=float("inf"))
            row_delta = tl.load(delta + head * length + row_query, mask=exists, other=0.0)

            # Keys down, rows across: so the weights are the left factor of the next product as they are.
            logits = tl.dot(key_tile, pair.T, input_precision="ieee")
            logits = hide(logits, row_query[None, :], keys[:, None], window1)
            weights = tl.exp2(logits - row_lse[None, :])
            total_v1 = tl.dot(weights.to(pair.dtype), grad_pair, total_v1, input_precision="ieee")
            grad_weights = tl.dot(value_tile, grad_pair.T, input_precision="ieee")
            grad_logits = (weights * (grad_weights - row_delta[None, :])).to(pair.dtype)
            total_k1 = tl.dot(grad_logits, pair, total_k1, input_precision="ieee")
    at = kv_head * length * HEAD_DIM + keys[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    tl.store(grad_k1 + at, (total_k1 / LOG2_E_CONSTANT).to(grad_k1.dtype.element_ty), mask=keys[:, None] < length)
    tl.store(grad_v1 + at, total_v1.to(grad_v1.dtype.element_ty), mask=keys[:, None] < length)


@triton.jit
def gradients_of_rows(
    pair, grad_pair, row_query, row_lse, row_delta, k1, v1, first_key, end_key, length, window1,
    HEAD_DIM: tl.constexpr, BLOCK_KEYS: tl.constexpr, WITH_VALUES: tl.constexpr,
):  # fmt: skip
    """Compute by_keys and, WITH_VALUES, by_values of rows, summed over the keys from first_key to end_key."""
    by_keys = tl.zeros(pair.shape, tl.float32)
    by_values = tl.zeros(pair.shape, tl.float32)
    for start in range(first_key, end_key, BLOCK_KEYS):
        keys = start + tl.arange(0, BLOCK_KEYS)
        key_tile = load_rows(k1, keys, keys < length, HEAD_DIM)
        value_tile = load_rows(v1, keys, keys < length, HEAD_DIM)
        logits = tl.dot(pair, key_tile.T, input_precision="ieee")
        logits = hide(logits, row_query[:, None], keys[None, :], window1)
        weights = tl.exp2(logits - row_lse[:, None])
        grad_weights = tl.dot(grad_pair, value_tile.T, input_precision="ieee")
        grad_logits = (weights * (grad_weights - row_delta[:, None])).to(pair.dtype)
        by_keys = tl.dot(grad_logits, key_tile, by_keys, input_precision="ieee")
        if WITH_VALUES:
            by_values = tl.dot(weights.to(pair.dtype), value_tile, by_values, input_precision="ieee")
    return by_keys, by_values


@triton.jit
def simplicial_grad_q_kernel(
    q, k1, k2, v1, v2, out, grad_out, lse, delta, grad_q, length, window1, window2, scale,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_POSITIONS: tl.constexpr, BLOCK_OFFSETS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Compute the part of dq of BLOCK_POSITIONS queries that one chunk of offsets adds, and the queries' delta for the
    two other kernels."""
    ROWS: tl.constexpr = BLOCK_POSITIONS * BLOCK_OFFSETS
    head = tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(2)
    q += head * length * HEAD_DIM
    grad_out += head * length * HEAD_DIM
    k1 += head // GROUP * length * HEAD_DIM
    k2 += head // GROUP * length * HEAD_DIM
    v1 += head // GROUP * length * HEAD_DIM
    v2 += head // GROUP * length * HEAD_DIM

    first_query = tl.program_id(0) * BLOCK_POSITIONS
    queries = first_query + tl.arange(0, BLOCK_POSITIONS)
    out_tile = load_rows(out + head * length * HEAD_DIM, queries, queries < length, HEAD_DIM)
    query_delta = tl.sum(out_tile.to(tl.float32) * load_rows(grad_out, queries, queries < length, HEAD_DIM), 1)
    tl.store(delta + head * length + queries, query_delta, mask=(queries < length) & (chunk == 0))

    row_query = first_query + tl.arange(0, ROWS) // BLOCK_OFFSETS
    offset = chunk * BLOCK_OFFSETS + tl.arange(0, ROWS) % BLOCK_OFFSETS
    row_key2 = row_query - offset
    exists = (row_query < length) & (row_key2 >= 0) & (offset < window2)
    k2_rows = load_rows(k2, row_key2, exists, HEAD_DIM)
    pair = load_rows(q, row_query, exists, HEAD_DIM).to(tl.float32) * k2_rows * (scale * LOG2_E_CONSTANT)
    grad_pair = load_rows(grad_out, row_query, exists, HEAD_DIM).to(tl.float32)
    grad_pair *= load_rows(v2, row_key2, exists, HEAD_DIM)
    row_lse = tl.load(lse + head * length + row_query, mask=exists, other=float("inf"))
    first_key = tl.maximum(first_query - window1 + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
    end_key = tl.minimum(first_query + BLOCK_POSITIONS, length)
    by_keys, _ = gradients_of_rows(
        pair.to(k1.dtype.element_ty), grad_pair.to(k1.dtype.element_ty), row_query, row_lse,
        to_rows(query_delta, ROWS), k1, v1, first_key, end_key, length, window1, HEAD_DIM, BLOCK_KEYS, False,
    )  # fmt: skip
    total = (sum_rows(by_keys * k2_rows, BLOCK_POSITIONS) * scale).to(grad_q.dtype.element_ty)
    at = queries[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    part = chunk * tl.num_programs(1) + head
    tl.store(grad_q + part * length * HEAD_DIM + at, total, mask=queries[:, None] < length)


@triton.jit
def simplicial_grad_k2_v2_kernel(
    q, k1, k2, v1, v2, grad_out, lse, delta, grad_k2, grad_v2, length, window1, window2, scale,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_POSITIONS: tl.constexpr, BLOCK_OFFSETS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """Compute the parts of dk2 and dv2 of BLOCK_POSITIONS positions k that one head of q and one chunk of offsets add.
    The rows of k are the queries k, k + 1, … that may see it."""
    ROWS: tl.constexpr = BLOCK_POSITIONS * BLOCK_OFFSETS
    head = tl.program_id(1).to(tl.int64)
    chunk = tl.program_id(2)
    q += head * length * HEAD_DIM
    grad_out += head * length * HEAD_DIM
    k1 += head // GROUP * length * HEAD_DIM
    k2 += head // GROUP * length * HEAD_DIM
    v1 += head // GROUP * length * HEAD_DIM
    v2 += head // GROUP * length * HEAD_DIM

    first_key2 = tl.program_id(0) * BLOCK_POSITIONS
    row_key2 = first_key2 + tl.arange(0, ROWS) // BLOCK_OFFSETS
    offset = chunk * BLOCK_OFFSETS + tl.arange(0, ROWS) % BLOCK_OFFSETS
    row_query = row_key2 + offset
    exists = (row_query < length) & (offset < window2)
    q_rows = load_rows(q, row_query, exists, HEAD_DIM)
    grad_out_rows = load_rows(grad_out, row_query, exists, HEAD_DIM)
    pair = q_rows.to(tl.float32) * load_rows(k2, row_key2, exists, HEAD_DIM) * (scale * LOG2_E_CONSTANT)
    grad_pair = grad_out_rows.to(tl.float32) * load_rows(v2, row_key2, exists, HEAD_DIM)
    row_lse = tl.load(lse + head * length + row_query, mask=exists, other=float("inf"))
    row_delta = tl.load(delta + head * length + row_query, mask=exists, other=0.0)
    first_query = first_key2 + chunk * BLOCK_OFFSETS
    first_key = tl.maximum(first_query - window1 + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
    end_key = tl.minimum(first_query + BLOCK_POSITIONS + BLOCK_OFFSETS - 1, length)
    by_keys, by_values = gradients_of_rows(
        pair.to(k1.dtype.element_ty), grad_pair.to(k1.dtype.element_ty), row_query, row_lse, row_delta,
        k1, v1, first_key, end_key, length, window1, HEAD_DIM, BLOCK_KEYS, True,
    )  # fmt: skip
    total_k2 = sum_rows(by_keys * q_rows, BLOCK_POSITIONS) * scale
    total_v2 = sum_rows(by_values * grad_out_rows, BLOCK_POSITIONS)
    keys2 = first_key2 + tl.arange(0, BLOCK_POSITIONS)
    at = keys2[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    at += (chunk * tl.num_programs(1) + head) * length * HEAD_DIM
    tl.store(grad_k2 + at, total_k2.to(grad_k2.dtype.element_ty), mask=keys2[:, None] < length)
    tl.store(grad_v2 + at, total_v2.to(grad_v2.dtype.element_ty), mask=keys2[:, None] < length)


def simplicial_attention_backward(
    inputs: tuple[torch.Tensor, ...], out: torch.Tensor, lse: torch.Tensor, grad_out: torch.Tensor, problem: Problem
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the gradients of inputs = (q, k1, k2, v1, v2), all contiguous. `grad_out` may have any strides."""
    grad_out = grad_out.contiguous()
    q, k1, k2, v1, _ = inputs
    grad_k1, grad_v1 = torch.empty_like(k1), torch.empty_like(v1)
    tiles = problem.shipped
    grad_q = _parts_of(q, problem.chunks(tiles.grad_q))
    grad_k2, grad_v2 = (_parts_of(k2, problem.chunks(tiles.grad_k2_v2), problem.group) for _ in range(2))
    if not problem.is_empty:
        delta = torch.empty_like(lse)
        sizes = (problem.length, problem.window1, problem.window2, problem.scale)
        chosen = problem.rows_that_are_pairs(tiles.grad_q)
        positions = triton.cdiv(problem.length, chosen.constants["BLOCK_POSITIONS"])
        simplicial_grad_q_kernel[positions, problem.heads, len(grad_q)](
            *inputs, out, grad_out, lse, delta, grad_q, *sizes, **chosen.options()
        )
        chosen = problem.rows_that_are_pairs(tiles.grad_k2_v2)
        positions = triton.cdiv(problem.length, chosen.constants["BLOCK_POSITIONS"])
        simplicial_grad_k2_v2_kernel[positions, problem.heads, len(grad_k2)](
            *inputs, grad_out, lse, delta, grad_k2, grad_v2, *sizes, **chosen.options()
        )
        rows, keys = tiles.grad_k1_v1.rows, tiles.grad_k1_v1.keys
        constants = {"GROUP": problem.group, "HEAD_DIM": problem.head_dim, "ROWS": rows, "BLOCK_KEYS": keys}
        simplicial_grad_k1_v1_kernel[triton.cdiv(problem.length, keys), problem.kv_heads](
            *inputs, grad_out, lse, delta, grad_k1, grad_v1, *sizes,
            **tiles.grad_k1_v1.configuration(constants).options(),
        )  # fmt: skip
    return _sum_of(grad_q, q), grad_k1, _sum_of(grad_k2, k2), grad_v1, _sum_of(grad_v2, k2)


def _parts_of(like: torch.Tensor, chunks: int, group: int = 1) -> torch.Tensor:
    """Return an empty tensor, (chunks, batch, heads, group, sequence, head_dim), for each program's part of a shared
    gradient.

    A program that went through all chunks and heads itself would have to keep its sums in registers, and has none left.
    Parts are float32. If there is only one, it is the gradient.
    """
    batch, heads, length, head_dim = like.shape
    dtype = like.dtype if chunks * group == 1 else torch.float32
    return like.new_empty((chunks, batch, heads, group, length, head_dim), dtype=dtype)


def _sum_of(parts: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if parts.shape[0] * parts.shape[3] == 1:
        return parts.view_as(like)
    return parts.sum((0, 3)).to(like.dtype)
