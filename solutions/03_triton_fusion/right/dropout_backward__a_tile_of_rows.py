@triton.jit
def dropout_backward_kernel(grad, x, bias, out, rows, columns, p, seed, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A two-dimensional tile per program; its bias is loaded once."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    at = row[:, None] * columns + column[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    shift = tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
    z = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + shift[None, :]
    cumulative = (1 + tl.erf(z * 0.7071067811865476)) / 2
    density = tl.exp2(z * z * -0.7213475204444817) * 0.3989422804014327
    result = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32) * (cumulative + z * density)
    result = tl.where(tl.rand(seed, at) >= p, result / (1 - p), 0.0)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


def dropout_backward(grad: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """The gradient of x, in one launch."""
    if not (p >= 0 and p < 1):
        raise ValueError(f"p = {p}")
    rows, columns = x.shape
    out = x.new_empty((rows, columns))
    if rows == 0:
        return out
    grid = (triton.cdiv(rows, 8), triton.cdiv(columns, 256))
    dropout_backward_kernel[grid](grad, x, bias, out, rows, columns, p, seed, ROWS=8, COLUMNS=256)
    return out
