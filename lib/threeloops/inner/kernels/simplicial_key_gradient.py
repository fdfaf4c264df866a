"""2-simplicial attention, backward: the gradients of k1 and v1, summed over all rows that see a key.

Notation of `simplicial_attention_backward`. Nothing is summed over the offsets of one query here, so the rows of a tile
may be any pairs: they are numbered through, query by query, and each tile takes the next ROWS, whatever the windows.
"""

import triton
import triton.language as tl

from threeloops.inner.kernels.simplicial_rows import LOG2_E, hide, load_rows


@triton.jit
def simplicial_grad_k1_v1_kernel(
    q, k1, k2, v1, v2, grad_out, lse, delta, grad_k1, grad_v1, length, window1, window2, scale,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK_KEYS: tl.constexpr,
):  # fmt: skip
    """dk1 and dv1 of BLOCK_KEYS keys, over all pairs of all queries that may see one of them."""
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
            pair = (pair * load_rows(k2, row_key2, exists, HEAD_DIM) * (scale * LOG2_E)).to(k1.dtype.element_ty)
            grad_pair = load_rows(grad_out + head * length * HEAD_DIM, row_query, exists, HEAD_DIM).to(tl.float32)
            grad_pair = (grad_pair * load_rows(v2, row_key2, exists, HEAD_DIM)).to(k1.dtype.element_ty)
            row_lse = tl.load(lse + head * length + row_query, mask=exists, other=float("inf"))
            row_delta = tl.load(delta + head * length + row_query, mask=exists, other=0.0)

            # Keys down, rows across: the weights then are the left factor of the next product as they are.
            logits = tl.dot(key_tile, pair.T, input_precision="ieee")
            logits = hide(logits, row_query[None, :], keys[:, None], window1)
            weights = tl.exp2(logits - row_lse[None, :])
            total_v1 = tl.dot(weights.to(pair.dtype), grad_pair, total_v1, input_precision="ieee")
            grad_weights = tl.dot(value_tile, grad_pair.T, input_precision="ieee")
            grad_logits = (weights * (grad_weights - row_delta[None, :])).to(pair.dtype)
            total_k1 = tl.dot(grad_logits, pair, total_k1, input_precision="ieee")
    at = kv_head * length * HEAD_DIM + keys[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    tl.store(grad_k1 + at, (total_k1 / LOG2_E).to(grad_k1.dtype.element_ty), mask=keys[:, None] < length)
    tl.store(grad_v1 + at, total_v1.to(grad_v1.dtype.element_ty), mask=keys[:, None] < length)
