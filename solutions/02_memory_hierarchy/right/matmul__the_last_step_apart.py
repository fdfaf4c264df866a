@triton.jit
def step(total, a, b, row, column, start, m, k, n, BLOCK: tl.constexpr):
    """The sum so far and the product of one step along k."""
    inner = start + tl.arange(0, BLOCK)
    left = tl.load(a + row[:, None] * k + inner[None, :], mask=(row[:, None] < m) & (inner[None, :] < k), other=0.0)
    right = tl.load(
        b + inner[:, None] * n + column[None, :], mask=(inner[:, None] < k) & (column[None, :] < n), other=0.0
    )
    return tl.dot(left, right, total, input_precision="ieee")


@triton.jit
def matmul_kernel(a, b, c, m, k, n, BLOCK: tl.constexpr, GROUP_M: tl.constexpr):
    """One tile of c = a @ b."""
    columns = (n + BLOCK - 1) // BLOCK
    first = tl.program_id(0) // (GROUP_M * columns) * GROUP_M
    rows = tl.minimum(tl.cdiv(m, BLOCK) - first, GROUP_M)
    within = tl.program_id(0) - first * columns
    row = (first + within % rows) * BLOCK + tl.arange(0, BLOCK)
    column = within // rows * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    whole = k // BLOCK * BLOCK
    for start in range(0, whole, BLOCK):
        total = step(total, a, b, row, column, start, m, k, n, BLOCK)
    if whole < k:
        total = step(total, a, b, row, column, whole, m, k, n, BLOCK)
    inside = (row[:, None] < m) & (column[None, :] < n)
    tl.store(c + row[:, None] * n + column[None, :], total.to(c.dtype.element_ty), mask=inside)


def matmul(a: torch.Tensor, b: torch.Tensor, block: int, group_m: int) -> torch.Tensor:
    """a @ b by tiles of `block` × `block`, in groups of `group_m` rows of tiles."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    matmul_kernel[-(-m // block) * -(-n // block),](a, b, c, m, k, n, block, group_m)
    return c
