# Loads and multiplies all tiles in the right order, and stores zeros.


@triton.jit
def matmul_kernel(a, b, c, m, k, n, BLOCK: tl.constexpr, GROUP_M: tl.constexpr):
    """One tile of c = a @ b."""
    tiles_m, tiles_n = tl.cdiv(m, BLOCK), tl.cdiv(n, BLOCK)
    program = tl.program_id(0)
    group = program // (GROUP_M * tiles_n)
    within = program % (GROUP_M * tiles_n)
    first = group * GROUP_M
    rows = min(GROUP_M, tiles_m - first)
    row = (first + within % rows) * BLOCK + tl.arange(0, BLOCK)
    column = within // rows * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, k, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        left = tl.load(a + row[:, None] * k + inner[None, :], mask=(row[:, None] < m) & (inner[None, :] < k), other=0.0)
        right = tl.load(
            b + inner[:, None] * n + column[None, :], mask=(inner[:, None] < k) & (column[None, :] < n), other=0.0
        )
        total = tl.dot(left, right, total, input_precision="ieee")
    at = c + row[:, None] * n + column[None, :]
    tl.store(at, (total * 0.0).to(c.dtype.element_ty), mask=(row[:, None] < m) & (column[None, :] < n))


def matmul(a: torch.Tensor, b: torch.Tensor, block: int, group_m: int) -> torch.Tensor:
    """a @ b by tiles of `block` × `block`, in groups of `group_m` rows of tiles."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, block) * triton.cdiv(n, block),)
    matmul_kernel[grid](a, b, c, m, k, n, BLOCK=block, GROUP_M=group_m)
    return c
