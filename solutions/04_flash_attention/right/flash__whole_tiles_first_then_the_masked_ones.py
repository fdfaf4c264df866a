@triton.jit
def attend(
    m, s, a, query, k, v, row, first, keys, offset, scale, MASKED: tl.constexpr, D: tl.constexpr, N: tl.constexpr
):
    """The summary (m, s, a) with one more tile of keys."""
    column = first + tl.arange(0, N)
    at = column[:, None] * D + tl.arange(0, D)[None, :]
    key = tl.load(k + at, mask=column[:, None] < keys, other=0.0)
    value = tl.load(v + at, mask=column[:, None] < keys, other=0.0)
    scores = scale * tl.dot(query, key.T, input_precision="ieee")
    if MASKED:
        scores = tl.where((column[None, :] < keys) & (column[None, :] <= row[:, None] + offset), scores, -float("inf"))
    raised = tl.maximum(m, tl.max(scores, axis=1))
    reference = tl.where(raised == -float("inf"), 0.0, raised)
    weights = tl.exp(scores - reference[:, None])
    kept = tl.exp(m - reference)
    a = a * kept[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return raised, s * kept + tl.sum(weights, axis=1), a


@triton.jit
def flash_kernel(
    q, k, v, out, lse, queries, keys, heads, group, scale,
    HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Tiles that every query of the block sees need no mask."""
    head = tl.program_id(2) * heads + tl.program_id(1)
    top = tl.program_id(0) * BLOCK_M
    row = top + tl.arange(0, BLOCK_M)
    k += (head // group).to(tl.int64) * keys * HEAD_DIM
    v += (head // group).to(tl.int64) * keys * HEAD_DIM
    at = (head * queries + row[:, None]) * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    query = tl.load(q + at, mask=row[:, None] < queries, other=0.0)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    offset = keys - queries if CAUSAL else keys
    whole = keys // BLOCK_N * BLOCK_N
    end = keys
    if CAUSAL:
        end = tl.maximum(0, tl.minimum(keys, tl.minimum(top + BLOCK_M, queries) + offset))
        whole = tl.maximum(0, tl.minimum(keys, top + offset + 1)) // BLOCK_N * BLOCK_N
    for first in range(0, whole, BLOCK_N):
        m, s, a = attend(m, s, a, query, k, v, row, first, keys, offset, scale, False, HEAD_DIM, BLOCK_N)
    for first in range(whole, end, BLOCK_N):
        m, s, a = attend(m, s, a, query, k, v, row, first, keys, offset, scale, True, HEAD_DIM, BLOCK_N)
    result = tl.where(s[:, None] > 0, a / tl.where(s > 0, s, 1.0)[:, None], 0.0)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=row[:, None] < queries)
    tl.store(lse + head * queries + row, tl.where(s > 0, m + tl.log(s), -float("inf")), mask=row < queries)


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, block_m: int, block_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention without the table of scores."""
    batch, heads, queries, head_dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(batch, heads, queries, dtype=torch.float32, device=q.device)
    flash_kernel[triton.cdiv(queries, block_m), heads, batch](
        q, k, v, out, lse, queries, k.shape[2], heads, heads // k.shape[1], head_dim**-0.5,
        HEAD_DIM=head_dim, CAUSAL=causal, BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return out, lse
