@triton.jit
def attend(m, s, a, query, k, v, row, first, keys, offset, scale, D: tl.constexpr, N: tl.constexpr):
    """The summary (m, s, a) with one more tile of keys."""
    column = first + tl.arange(0, N)
    at = column[:, None] * D + tl.arange(0, D)[None, :]
    key = tl.load(k + at, mask=column[:, None] < keys, other=0.0)
    value = tl.load(v + at, mask=column[:, None] < keys, other=0.0)
    scores = scale * tl.dot(query, key.T, input_precision="ieee")
    scores = tl.where((column[None, :] < keys) & (column[None, :] <= row[:, None] + offset), scores, -float("inf"))
    raised = tl.maximum(m, tl.max(scores, axis=1))
    reference = tl.where(raised == -float("inf"), 0.0, raised)
    weights = tl.exp(scores - reference[:, None])
    kept = tl.exp(m - reference)
    a = a * kept[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return raised, s * kept + tl.sum(weights, axis=1), a


@triton.jit
def grouped_kernel(
    q, k, v, out, lse, queries, keys, group, scale, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """One call for each tile."""
    head = tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)
    q += head * queries * HEAD_DIM
    out += head * queries * HEAD_DIM
    lse += head * queries
    k += head // group * keys * HEAD_DIM
    v += head // group * keys * HEAD_DIM
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    at = row[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    query = tl.load(q + at, mask=row[:, None] < queries, other=0.0)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for first in range(
        0, tl.maximum(tl.minimum(tl.program_id(0) * BLOCK_M + BLOCK_M, queries) + keys - queries, 0), BLOCK_N
    ):
        m, s, a = attend(m, s, a, query, k, v, row, first, keys, keys - queries, scale, HEAD_DIM, BLOCK_N)
    result = tl.where(s[:, None] > 0, a / tl.where(s > 0, s, 1.0)[:, None], 0.0)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=row[:, None] < queries)
    tl.store(lse + row, tl.where(s > 0, m + tl.log(s), -float("inf")), mask=row < queries)


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_m: int, block_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention without the table of scores."""
    queries, head_dim = q.shape[-2:]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    grid = (triton.cdiv(queries, block_m), q.shape[1], q.shape[0])
    grouped_kernel[grid](
        q, k, v, out, lse, queries, k.shape[-2], q.shape[1] // k.shape[1], head_dim**-0.5,
        HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return out, lse
