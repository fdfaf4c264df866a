LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def window_kernel(
    q, k, v, out, tokens, scale, window, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """A loop over tile numbers, scores in units of log 2."""
    top = tl.program_id(0) * BLOCK_M
    row, width = top + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    at = row[:, None] * HEAD_DIM + width[None, :]
    query = tl.load(q + at, mask=row[:, None] < tokens, other=0.0)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    begin = max(0, top - window + 1) // BLOCK_N
    end = tl.cdiv(min(tokens, top + BLOCK_M), BLOCK_N)
    for tile in range(begin, end):
        column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        turned = tl.load(k + column[None, :] * HEAD_DIM + width[:, None], mask=column[None, :] < tokens, other=0.0)
        scores = tl.dot(query, turned, input_precision="ieee") * (scale * LOG2E)
        visible = (column[None, :] <= row[:, None]) & (column[None, :] > row[:, None] - window)
        larger = tl.maximum(m, tl.max(tl.where(visible, scores, float("-inf")), axis=1))
        safe = tl.where(larger == float("-inf"), 0.0, larger)
        p = tl.where(visible, tl.exp2(scores - safe[:, None]), 0.0)
        shrink = tl.exp2(m - safe)
        value = tl.load(v + column[:, None] * HEAD_DIM + width[None, :], mask=column[:, None] < tokens, other=0.0)
        a = tl.dot(p.to(value.dtype), value, a * shrink[:, None], input_precision="ieee")
        s = s * shrink + tl.sum(p, axis=1)
        m = larger
    tl.store(out + at, (a / tl.where(s > 0, s, 1.0)[:, None]).to(out.dtype.element_ty), mask=row[:, None] < tokens)


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
