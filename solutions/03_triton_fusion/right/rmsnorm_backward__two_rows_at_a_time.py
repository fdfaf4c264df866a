def rows_per_program(rows: int) -> int:
    """Between fourteen rows and those that leave 132 programs: the most."""
    return max(14, (rows - 1) // 131 if rows > 131 * 14 else 14) if rows < 131 * 131 else rows // 132


@triton.jit
def rmsnorm_backward_kernel(dy, x, w, r, dx, partials, rows, columns, each, BLOCK: tl.constexpr):
    """Two rows are in registers, as a tile of two lines."""
    column = tl.arange(0, BLOCK)[None, :]
    scale = tl.load(w + column, mask=column < columns, other=0.0).to(tl.float32)
    part = tl.zeros((2, BLOCK), tl.float32)
    first = tl.program_id(0) * each
    last = tl.minimum(first + each, rows)
    for pair in range(first, last, 2):
        row = pair + tl.arange(0, 2)[:, None]
        inside = (row < last) & (column < columns)
        values = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
        given = tl.load(dy + row * columns + column, mask=inside, other=0.0).to(tl.float32)
        root = tl.load(r + row, mask=row < last, other=0.0)
        g = given * scale
        mean = tl.sum(g * values, axis=1, keep_dims=True) / columns
        result = root * (g - values * (root * root * mean))
        tl.store(dx + row * columns + column, result.to(dx.dtype.element_ty), mask=inside)
        part += given * values * root
    sums = tl.sum(part, axis=0)
    at = tl.arange(0, BLOCK)
    tl.store(partials + tl.program_id(0) * columns + at, sums, mask=at < columns)


def rmsnorm_backward(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, r: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of x and of w."""
    rows, columns = x.shape
    each = rows_per_program(rows)
    programs = (rows + each - 1) // each
    dx, partials = torch.empty_like(dy), torch.empty((programs, columns), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(columns)
    rmsnorm_backward_kernel[(programs,)](dy, x, w, r, dx, partials, rows, columns, each, BLOCK=block, num_warps=16)
    return dx, partials.sum(dim=0)
