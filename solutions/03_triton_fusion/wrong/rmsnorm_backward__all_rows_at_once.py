# expect: spills
# fails: traffic
def rows_per_program(rows: int) -> int:
    """How many rows a program of the backward kernel takes."""
    return max(14, rows // 264)


@triton.jit
def rmsnorm_backward_kernel(dy, x, w, r, dx, partials, rows, columns, each, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """dx of `each` rows, and their part of dw."""
    column = tl.arange(0, BLOCK)[None, :]
    scale = tl.load(w + column, mask=column < columns, other=0.0).to(tl.float32)
    line = tl.arange(0, ROWS)[:, None]
    row = tl.program_id(0) * each + line
    inside = (line < each) & (row < rows) & (column < columns)
    values = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    given = tl.load(dy + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    inverse = tl.load(r + row, mask=(line < each) & (row < rows), other=0.0)
    g = given * scale
    mean = tl.sum(g * values, axis=1)[:, None] / columns
    result = inverse * (g - values * (inverse * inverse * mean))
    tl.store(dx + row * columns + column, result.to(dx.dtype.element_ty), mask=inside)
    part = tl.sum(given * values * inverse, axis=0)[None, :]
    tl.store(partials + tl.program_id(0) * columns + column, part, mask=column < columns)


def rmsnorm_backward(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, r: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of x and of w."""
    rows, columns = x.shape
    each = rows_per_program(rows)
    programs, block = triton.cdiv(rows, each), triton.next_power_of_2(columns)
    dx, partials = torch.empty_like(x), torch.empty(programs, columns, dtype=torch.float32, device=x.device)
    rmsnorm_backward_kernel[(programs,)](
        dy, x, w, r, dx, partials, rows, columns, each, BLOCK=block, num_warps=8, ROWS=triton.next_power_of_2(each)
    )
    return dx, partials.sum(0)
