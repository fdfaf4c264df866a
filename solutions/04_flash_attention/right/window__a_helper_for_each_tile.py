@triton.jit
def attend(m, s, a, query, k, v, row, first, tokens, window, scale, D: tl.constexpr, N: tl.constexpr):
    """The summary (m, s, a) with one more tile of keys."""
    column = first + tl.arange(0, N)
    at = column[:, None] * D + tl.arange(0, D)[None, :]
    key = tl.load(k + at, mask=column[:, None] < tokens, other=0.0)
    value = tl.load(v + at, mask=column[:, None] < tokens, other=0.0)
    distance = row[:, None] - column[None, :]
    scores = scale * tl.dot(query, key.T, input_precision="ieee")
    scores = tl.where((distance >= 0) & (distance < window), scores, -float("inf"))
    raised = tl.maximum(m, tl.max(scores, axis=1))
    reference = tl.where(raised == -float("inf"), 0.0, raised)
    weights = tl.exp(scores - reference[:, None])
    kept = tl.exp(m - reference)
    a = a * kept[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return raised, s * kept + tl.sum(weights, axis=1), a


@triton.jit
def window_kernel(
    q, k, v, out, tokens, scale, window, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """The tiles of the window, one call each."""
    top = tl.program_id(0) * BLOCK_M
    row = top + tl.arange(0, BLOCK_M)
    at = row[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    query = tl.load(q + at, mask=row[:, None] < tokens, other=0.0)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    begin = tl.maximum(top + 1 - window, 0)
    for first in range(begin - begin % BLOCK_N, tl.minimum(top + BLOCK_M, tokens), BLOCK_N):
        m, s, a = attend(m, s, a, query, k, v, row, first, tokens, window, scale, HEAD_DIM, BLOCK_N)
    result = tl.where(s[:, None] > 0, a / tl.where(s > 0, s, 1.0)[:, None], 0.0)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=row[:, None] < tokens)


def window_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, block_m: int, block_n: int
) -> torch.Tensor:
    """Causal attention to the last `window` keys."""
    tokens, head_dim = q.shape
    out = torch.empty_like(q)
    window_kernel[(triton.cdiv(tokens, block_m),)](
        q, k, v, out, tokens, head_dim**-0.5, window,
        HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return out
