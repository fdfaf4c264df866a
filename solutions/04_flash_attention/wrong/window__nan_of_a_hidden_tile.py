# expect: NaN
@triton.jit
def window_kernel(
    q, k, v, out, tokens, scale, window, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """BLOCK_M queries, and only the tiles that their windows touch."""
    top = tl.program_id(0) * BLOCK_M
    row = top + tl.arange(0, BLOCK_M)
    width = tl.arange(0, HEAD_DIM)
    at = row[:, None] * HEAD_DIM + width[None, :]
    query = tl.load(q + at, mask=row[:, None] < tokens, other=0.0)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    begin = tl.maximum(top - window + 1, 0) // BLOCK_N * BLOCK_N
    end = tl.minimum(top + BLOCK_M, tokens)
    for first in range(begin, end, BLOCK_N):
        column = first + tl.arange(0, BLOCK_N)
        tile = column[:, None] * HEAD_DIM + width[None, :]
        key = tl.load(k + tile, mask=column[:, None] < tokens, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        distance = row[:, None] - column[None, :]
        scores = tl.where((distance >= 0) & (distance < window), scores, -float("inf"))
        raised = tl.maximum(m, tl.max(scores, axis=1))
        reference = raised
        kept = tl.exp(m - reference)
        weights = tl.exp(scores - reference[:, None])
        value = tl.load(v + tile, mask=column[:, None] < tokens, other=0.0)
        a = a * kept[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        s = s * kept + tl.sum(weights, axis=1)
        m = raised
    result = a / tl.where(s == 0.0, 1.0, s)[:, None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=row[:, None] < tokens)


def window_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, block_m: int, block_n: int
) -> torch.Tensor:
    """Causal attention to the last `window` keys."""
    tokens, head_dim = q.shape
    out = torch.empty_like(q)
    window_kernel[(triton.cdiv(tokens, block_m),)](
        q, k, v, out, tokens, head_dim**-0.5, window, HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n
    )
    return out
