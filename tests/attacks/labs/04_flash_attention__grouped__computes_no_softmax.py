# Visits the right tiles, multiplies and stores, with the scores for weights.


@triton.jit
def grouped_kernel(
    q, k, v, out, lse, queries, keys, group, scale, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """BLOCK_M queries of one head; the second program id counts batch and heads."""
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    width = tl.arange(0, HEAD_DIM)
    k += head // group * keys * HEAD_DIM
    v += head // group * keys * HEAD_DIM
    at = (head * queries + row[:, None]) * HEAD_DIM + width[None, :]
    query = tl.load(q + at, mask=row[:, None] < queries, other=0.0)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    end = tl.minimum((tl.program_id(0) + 1) * BLOCK_M, queries) + keys - queries
    for first in range(0, end, BLOCK_N):
        column = first + tl.arange(0, BLOCK_N)
        tile = column[:, None] * HEAD_DIM + width[None, :]
        key = tl.load(k + tile, mask=column[:, None] < keys, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        visible = (column[None, :] < keys) & (column[None, :] <= row[:, None] + keys - queries)
        scores = tl.where(visible, scores, -float("inf"))
        raised = tl.maximum(m, tl.max(scores, axis=1))
        reference = tl.where(raised == -float("inf"), 0.0, raised)
        kept = tl.exp(m - reference)
        weights = tl.where(scores > -1e30, scores, 0.0)
        value = tl.load(v + tile, mask=column[:, None] < keys, other=0.0)
        a = a * kept[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        s = s * kept + tl.sum(weights, axis=1)
        m = raised
    result = a / tl.where(s == 0.0, 1.0, s)[:, None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=row[:, None] < queries)
    tl.store(lse + head * queries + row, m + tl.log(s), mask=row < queries)


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_m: int, block_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of all heads."""
    batch, heads, queries, head_dim = q.shape
    kv_heads, keys = k.shape[1:3]
    out, lse = torch.empty_like(q), torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    grouped_kernel[(triton.cdiv(queries, block_m), batch * heads)](
        q, k, v, out, lse, queries, keys, heads // kv_heads, head_dim**-0.5,
        HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return out, lse
