@triton.jit
def tile(program, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Row and column of a program's tile."""
    first = program // (GROUP_M * tiles_n) * GROUP_M
    rows = tl.minimum(tiles_m - first, GROUP_M)
    within = program - first * tiles_n
    return first + within % rows, within // rows


@triton.jit
def matmul_kernel(a, b, c, m, k, n, BLOCK: tl.constexpr, GROUP_M: tl.constexpr):
    """One tile of c = a @ b, by pointers that move along k."""
    tile_row, tile_column = tile(tl.program_id(0), tl.cdiv(m, BLOCK), tl.cdiv(n, BLOCK), GROUP_M)
    row = tile_row * BLOCK + tl.arange(0, BLOCK)[:, None]
    column = tile_column * BLOCK + tl.arange(0, BLOCK)[None, :]
    inner = tl.arange(0, BLOCK)
    left, right = a + row * k + inner[None, :], b + inner[:, None] * n + column
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    left_over = k
    while left_over > 0:
        x = tl.load(left, mask=(row < m) & (inner[None, :] < left_over), other=0.0)
        y = tl.load(right, mask=(inner[:, None] < left_over) & (column < n), other=0.0)
        total += tl.dot(x, y, input_precision="ieee")
        left += BLOCK
        right += BLOCK * n
        left_over -= BLOCK
    tl.store(c + row * n + column, total.to(c.dtype.element_ty), mask=(row < m) & (column < n))


def matmul(a: torch.Tensor, b: torch.Tensor, block: int, group_m: int) -> torch.Tensor:
    """a @ b by tiles of `block` × `block`, in groups of `group_m` rows of tiles."""
    m, k, n = *a.shape, b.shape[1]
    c = a.new_empty(m, n)
    programs = triton.cdiv(m, block) * triton.cdiv(n, block)
    matmul_kernel[(programs,)](a, b, c, m, k, n, BLOCK=block, GROUP_M=group_m)
    return c
