# expect: loaded without `other`
@triton.jit
def head_kernel(
    q, k, v, out, lse, queries, keys, scale, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """BLOCK_M queries and all keys."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    width = tl.arange(0, HEAD_DIM)
    at = row[:, None] * HEAD_DIM + width[None, :]
    query = tl.load(q + at, mask=row[:, None] < queries, other=0.0)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for first in range(0, keys, BLOCK_N):
        column = first + tl.arange(0, BLOCK_N)
        tile = column[:, None] * HEAD_DIM + width[None, :]
        key = tl.load(k + tile, mask=column[:, None] < keys)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(column[None, :] < keys, scores, -float("inf"))
        raised = tl.maximum(m, tl.max(scores, axis=1))
        kept = tl.exp(m - raised)
        weights = tl.exp(scores - raised[:, None])
        value = tl.load(v + tile, mask=column[:, None] < keys)
        a = a * kept[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        s = s * kept + tl.sum(weights, axis=1)
        m = raised
    tl.store(out + at, (a / s[:, None]).to(out.dtype.element_ty), mask=row[:, None] < queries)
    tl.store(lse + row, m + tl.log(s), mask=row < queries)


def flash_head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_m: int, block_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one head without the table of scores."""
    (queries, head_dim), keys = q.shape, len(k)
    out, lse = torch.empty_like(q), torch.empty(queries, dtype=torch.float32, device=q.device)
    head_kernel[(triton.cdiv(queries, block_m),)](
        q, k, v, out, lse, queries, keys, head_dim**-0.5, HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n
    )
    return out, lse
