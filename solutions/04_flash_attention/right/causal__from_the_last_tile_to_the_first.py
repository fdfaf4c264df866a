@triton.jit
def causal_kernel(
    q, k, v, out, lse, queries, keys, scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Keys from the end to the beginning, scores with the queries as columns."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    width = tl.arange(0, HEAD_DIM)
    turned = tl.load(q + row[None, :] * HEAD_DIM + width[:, None], mask=row[None, :] < queries, other=0.0)
    m = tl.full((BLOCK_M,), -1e30, tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    end = min(queries, (tl.program_id(0) + 1) * BLOCK_M) + keys - queries
    tile = tl.cdiv(max(end, 0), BLOCK_N) - 1
    while tile >= 0:
        column = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        at = column[:, None] * HEAD_DIM + width[None, :]
        key = tl.load(k + at, mask=column[:, None] < keys, other=0.0)
        scores = tl.dot(key, turned, input_precision="ieee") * scale
        visible = (column[:, None] < keys) & (column[:, None] <= row[None, :] + keys - queries)
        larger = tl.maximum(m, tl.max(tl.where(visible, scores, -1e30), axis=0))
        weights = tl.where(visible, tl.exp(scores - larger[None, :]), 0.0)
        shrink = tl.exp(m - larger)
        value = tl.load(v + at, mask=column[:, None] < keys, other=0.0)
        a = a * shrink[:, None] + tl.dot(tl.trans(weights).to(value.dtype), value, input_precision="ieee")
        s = s * shrink + tl.sum(weights, axis=0)
        m = larger
        tile -= 1
    nothing = s == 0
    result = tl.where(nothing[:, None], 0.0, a / tl.where(nothing, 1.0, s)[:, None])
    to = out + row[:, None] * HEAD_DIM + width[None, :]
    tl.store(to, result.to(out.dtype.element_ty), mask=row[:, None] < queries)
    logs = tl.where(nothing, -float("inf"), m + tl.log(tl.where(nothing, 1.0, s)))
    tl.store(lse + row, logs, mask=row < queries)


def flash_causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_m: int, block_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention without the table of scores."""
    (queries, head_dim), heads = q.shape[-2:], math.prod(q.shape[:-2])
    out = torch.empty_like(q)
    lse = torch.empty((heads * queries,), dtype=torch.float32, device=q.device)
    causal_kernel[(-(-queries // block_m), heads)](
        q, k, v, out, lse, queries, k.shape[-2], head_dim**-0.5, head_dim, block_m, block_n
    )
    return out, lse.view(q.shape[:-1])
