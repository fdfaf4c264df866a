@triton.jit
def matmul_kernel(a, b, c, m, k, n, BLOCK: tl.constexpr, GROUP_M: tl.constexpr):
    """One tile of cᵀ = bᵀ @ aᵀ, turned round at the end."""
    tiles_m, tiles_n = tl.cdiv(m, BLOCK), tl.cdiv(n, BLOCK)
    group, within = tl.program_id(0) // (GROUP_M * tiles_n), tl.program_id(0) % (GROUP_M * tiles_n)
    rows = min(GROUP_M, tiles_m - group * GROUP_M)
    row = (group * GROUP_M + within % rows) * BLOCK + tl.arange(0, BLOCK)
    column = within // rows * BLOCK + tl.arange(0, BLOCK)
    turned = tl.full((BLOCK, BLOCK), 0.0, tl.float32)
    for step in range(tl.cdiv(k, BLOCK)):
        inner = step * BLOCK + tl.arange(0, BLOCK)
        b_turned = tl.load(
            b + inner[None, :] * n + column[:, None], mask=(inner[None, :] < k) & (column[:, None] < n), other=0.0
        )
        a_turned = tl.load(
            a + row[None, :] * k + inner[:, None], mask=(row[None, :] < m) & (inner[:, None] < k), other=0.0
        )
        turned = tl.dot(b_turned, a_turned, acc=turned, input_precision="ieee")
    at = row[:, None] * n + column[None, :]
    inside = (row[:, None] < m) & (column[None, :] < n)
    tl.store(c + at, tl.trans(turned).to(c.dtype.element_ty), mask=inside)


def matmul(a: torch.Tensor, b: torch.Tensor, block: int, group_m: int) -> torch.Tensor:
    """a @ b by tiles of `block` × `block`, in groups of `group_m` rows of tiles."""
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)

    def grid(constants):
        return (triton.cdiv(a.shape[0], constants["BLOCK"]) * triton.cdiv(b.shape[1], constants["BLOCK"]),)

    matmul_kernel[grid](a, b, c, *a.shape, b.shape[1], BLOCK=block, GROUP_M=group_m)
    return c
