def rows_per_program(rows: int) -> int:
    """Fourteen rows keep the partial sums below a tenth."""
    return 14


@triton.jit
def rmsnorm_backward_kernel(dy, x, w, r, dx, partials, rows, columns, each, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < columns
    scale = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    part = tl.zeros((BLOCK,), tl.float32)
    row = tl.program_id(0) * each
    last = tl.minimum(row + each, rows)
    while row < last:
        values = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
        given = tl.load(dy + row * columns + column, mask=inside, other=0.0).to(tl.float32)
        normed = values * tl.load(r + row)
        g = given * scale
        result = (g - normed * (tl.sum(g * normed, axis=0) / columns)) * tl.load(r + row)
        tl.store(dx + row * columns + column, result.to(dx.dtype.element_ty), mask=inside)
        part += given * normed
        row += 1
    tl.store(partials + tl.program_id(0) * columns + column, part, mask=inside)


@triton.jit
def sum_kernel(partials, dw, programs, columns, BLOCK: tl.constexpr):
    """Adds up the partial sums of BLOCK columns, from the first program to the last."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for program in range(programs):
        total += tl.load(partials + program * columns + column, mask=column < columns, other=0.0)
    tl.store(dw + column, total, mask=column < columns)


def rmsnorm_backward(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, r: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of x and of w."""
    rows, columns = x.shape
    each = rows_per_program(rows)
    programs, block = triton.cdiv(rows, each), triton.next_power_of_2(columns)
    dx, partials = torch.empty_like(x), torch.empty(programs, columns, dtype=torch.float32, device=x.device)
    dw = torch.empty(columns, dtype=torch.float32, device=x.device)
    rmsnorm_backward_kernel[(programs,)](dy, x, w, r, dx, partials, rows, columns, each, BLOCK=block, num_warps=8)
    sum_kernel[(triton.cdiv(columns, 128),)](partials, dw, programs, columns, BLOCK=128)
    return dx, dw
