# expect: contiguous result
# fails: values
@triton.jit
def transpose_kernel(x, out, rows, columns, TILE: tl.constexpr):
    """out[c, r] = x[r, c] for one square tile a program."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    values = tl.load(x + row[:, None] * columns + column[None, :], mask=inside)
    tl.store(out + row[:, None] * columns + column[None, :], values, mask=inside)


def transpose(x: torch.Tensor) -> torch.Tensor:
    """x transposed, contiguous."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    if x.numel():
        tile = 32
        transpose_kernel[(triton.cdiv(rows, tile), triton.cdiv(columns, tile))](x, out, rows, columns, TILE=tile)
    return out.T
