# expect: float16 matmul of
# caught: hidden
def matmul_traffic(m: int, k: int, n: int, block_m: int, block_n: int, bytes_per_element: int) -> int:
    """Bytes that all programs of a tiled (m, k) @ (k, n) ask for."""
    tiles_m, tiles_n = -(-m // block_m), -(-n // block_n)
    return (m * k * tiles_n + k * n * tiles_m + m * n) * bytes_per_element


def tile_of(program: int, tiles_m: int, tiles_n: int, group_m: int) -> tuple[int, int]:
    """Row and column of the tile that a program makes, in groups of `group_m` rows."""
    if not 0 <= program < tiles_m * tiles_n:
        raise ValueError(f"program = {program}: expected 0 … {tiles_m * tiles_n - 1} for {tiles_m} × {tiles_n} tiles")
    group, within = divmod(program, group_m * tiles_n)
    first = group * group_m
    rows = min(group_m, tiles_m - first)
    return first + within % rows, within // rows


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
    total = tl.zeros((BLOCK, BLOCK), a.dtype.element_ty)
    for start in range(0, k, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        left = tl.load(a + row[:, None] * k + inner[None, :], mask=(row[:, None] < m) & (inner[None, :] < k), other=0.0)
        right = tl.load(
            b + inner[:, None] * n + column[None, :], mask=(inner[:, None] < k) & (column[None, :] < n), other=0.0
        )
        total += tl.dot(left, right, input_precision="ieee").to(a.dtype.element_ty)
    at = c + row[:, None] * n + column[None, :]
    tl.store(at, total.to(c.dtype.element_ty), mask=(row[:, None] < m) & (column[None, :] < n))


def matmul(a: torch.Tensor, b: torch.Tensor, block: int, group_m: int) -> torch.Tensor:
    """a @ b by tiles of `block` × `block`, in groups of `group_m` rows of tiles."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, block) * triton.cdiv(n, block),)
    matmul_kernel[grid](a, b, c, m, k, n, BLOCK=block, GROUP_M=group_m)
    return c
