LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def head_kernel(
    q, k, v, out, lse, queries, keys, scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Scores in units of log 2; products of float32 as three of TF32, which is as fine."""
    block = tl.program_id(0)
    row = block * BLOCK_M + tl.arange(0, BLOCK_M)
    width = tl.arange(0, HEAD_DIM)
    exists = row[:, None] < queries
    at = row[:, None] * HEAD_DIM + width[None, :]
    query = tl.load(q + at, mask=exists, other=0.0)
    m = tl.zeros((BLOCK_M,), tl.float32) - float("inf")
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    seen = tl.zeros((BLOCK_M,), tl.int32) + keys
    end = keys
    for first in range(0, end, BLOCK_N):
        column = first + tl.arange(0, BLOCK_N)
        turned = tl.load(k + column[None, :] * HEAD_DIM + width[:, None], mask=column[None, :] < keys, other=0.0)
        scores = tl.dot(query, turned, input_precision="tf32x3") * (scale * LOG2E)
        hidden = (column[None, :] >= keys) | (column[None, :] >= seen[:, None])
        scores = tl.where(hidden, float("-inf"), scores)
        larger = tl.maximum(m, tl.max(scores, axis=1))
        safe = tl.where(larger == float("-inf"), 0.0, larger)
        p = tl.exp2(scores - safe[:, None])
        shrink = tl.exp2(m - safe)
        value = tl.load(v + column[:, None] * HEAD_DIM + width[None, :], mask=column[:, None] < keys, other=0.0)
        a = tl.dot(p.to(value.dtype), value, acc=a * shrink[:, None], input_precision="tf32x3")
        s = s * shrink + tl.sum(p, axis=1)
        m = larger
    inverse = tl.where(s > 0, 1 / tl.where(s > 0, s, 1.0), 0.0)
    tl.store(out + at, (a * inverse[:, None]).to(out.dtype.element_ty), mask=exists)
    tl.store(lse + row, (m + tl.log2(s)) / LOG2E, mask=row < queries)


def flash_head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_m: int, block_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention without the table of scores."""
    queries, head_dim = q.shape[-2:]
    out, lse = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)
    blocks = triton.cdiv(queries, block_m)
    head_kernel[(blocks,)](
        q, k, v, out, lse, queries, k.shape[-2], 1 / math.sqrt(head_dim),
        HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return out, lse
