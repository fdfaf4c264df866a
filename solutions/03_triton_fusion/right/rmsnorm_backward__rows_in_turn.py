def rows_per_program(rows: int) -> int:
    """As many as leave each of 132 SMs a program."""
    return max(1, rows // 132)


@triton.jit
def rmsnorm_backward_kernel(dy, x, w, r, dx, partials, rows, columns, BLOCK: tl.constexpr):
    """Programs take the rows in turn, as cards are dealt."""
    column = tl.arange(0, BLOCK)
    inside = column < columns
    scale = tl.load(w + column, mask=inside).to(tl.float32)
    part = tl.zeros([BLOCK], dtype=tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        values = tl.where(inside, tl.load(x + row * columns + column, mask=inside).to(tl.float32), 0.0)
        given = tl.where(inside, tl.load(dy + row * columns + column, mask=inside).to(tl.float32), 0.0)
        root = tl.load(r + row)
        part += given * values * root
        g = tl.where(inside, given * scale, 0.0)
        factor = root * root * root * tl.sum(g * values) / columns
        tl.store(dx + row * columns + column, (root * g - values * factor).to(dx.dtype.element_ty), mask=inside)
    tl.store(partials + tl.program_id(0) * columns + column, part, mask=inside)


def rmsnorm_backward(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, r: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of x and of w."""
    rows, columns = x.shape
    programs = -(-rows // rows_per_program(rows))
    partials = x.new_empty((programs, columns), dtype=torch.float32)
    dx = x.new_empty(x.shape)
    rmsnorm_backward_kernel[programs,](
        dy, x, w, r, dx, partials, rows, columns, BLOCK=triton.next_power_of_2(columns), num_warps=16
    )
    return dx, torch.sum(partials, dim=0)
