@triton.jit
def window_kernel(
    q, k, v, out, tokens, scale, window, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """From the newest tile to the oldest that the block's first query sees, with a lowest number instead of −inf."""
    top = tl.program_id(0) * BLOCK_M
    row, width = top + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    at = row[:, None] * HEAD_DIM + width[None, :]
    query = tl.load(q + at, mask=row[:, None] < tokens, other=0.0)
    m = tl.full((BLOCK_M,), -1e30, tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    oldest = tl.maximum(top - window + 1, 0) // BLOCK_N
    tile = (tl.minimum(top + BLOCK_M, tokens) - 1) // BLOCK_N
    while tile >= oldest:
        column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        place = column[:, None] * HEAD_DIM + width[None, :]
        key = tl.load(k + place, mask=column[:, None] < tokens, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        age = row[:, None] - column[None, :]
        visible = (age >= 0) & (age < window)
        larger = tl.maximum(m, tl.max(tl.where(visible, scores, -1e30), axis=1))
        weights = tl.where(visible, tl.exp(scores - larger[:, None]), 0.0)
        shrink = tl.exp(m - larger)
        value = tl.load(v + place, mask=column[:, None] < tokens, other=0.0)
        a = a * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        s = s * shrink + tl.sum(weights, axis=1)
        m = larger
        tile -= 1
    tl.store(out + at, (a / tl.where(s == 0, 1.0, s)[:, None]).to(out.dtype.element_ty), mask=row[:, None] < tokens)


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
