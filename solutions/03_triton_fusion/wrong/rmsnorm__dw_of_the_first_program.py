# expect: dw of
@triton.jit
def rmsnorm_kernel(x, w, y, r, rows, columns, epsilon, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Normalise ROWS rows."""
    column = tl.arange(0, BLOCK)
    inside = column < columns
    scale = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    first = tl.program_id(0) * ROWS
    for row in range(first, tl.minimum(first + ROWS, rows)):
        at = row * columns + column
        values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        inverse = 1 / tl.sqrt(tl.sum(values * values, axis=0) / columns + epsilon)
        tl.store(y + at, (values * inverse * scale).to(y.dtype.element_ty), mask=inside)
        tl.store(r + row, inverse)


@triton.jit
def rmsnorm_backward_kernel(dy, x, w, r, dx, partials, rows, columns, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """dx of ROWS rows, and their part of dw."""
    column = tl.arange(0, BLOCK)
    inside = column < columns
    scale = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    part = tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(0) * ROWS
    for row in range(first, tl.minimum(first + ROWS, rows)):
        at = row * columns + column
        values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        given = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        inverse = tl.load(r + row)
        g = given * scale
        mean = tl.sum(g * values, axis=0) / columns
        result = inverse * (g - values * (inverse * inverse * mean))
        tl.store(dx + at, result.to(dx.dtype.element_ty), mask=inside)
        part += given * values * inverse
    tl.store(partials + tl.program_id(0) * columns + column, part, mask=inside)


def rmsnorm(x: torch.Tensor, w: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """y = x · r · w and r = 1 / √(mean(x²) + ε) of each row."""
    rows, columns = x.shape
    y, r = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        block = triton.next_power_of_2(columns)
        rmsnorm_kernel[(triton.cdiv(rows, 16),)](x, w, y, r, rows, columns, epsilon, BLOCK=block, ROWS=16)
    return y, r


def rmsnorm_backward(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, r: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of x and of w."""
    rows, columns = x.shape
    programs = triton.cdiv(rows, 16)
    dx, partials = torch.empty_like(x), torch.empty(programs, columns, dtype=torch.float32, device=x.device)
    if rows:
        block = triton.next_power_of_2(columns)
        rmsnorm_backward_kernel[(programs,)](dy, x, w, r, dx, partials, rows, columns, BLOCK=block, ROWS=16)
    return dx, partials[:1].sum(0)
