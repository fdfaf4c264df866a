@triton.jit
def strip_kernel(x, out, rows, columns, TILE: tl.constexpr):
    """32 rows of x, tile by tile."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    for first in range(0, columns, TILE):
        column = first + tl.arange(0, TILE)
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        values = tl.load(x + row[:, None] * columns + column[None, :], mask=inside, other=0)
        tl.store(out + column[:, None] * rows + row[None, :], values.T, mask=inside.T)


def transpose(x: torch.Tensor) -> torch.Tensor:
    """x transposed, contiguous."""
    out = x.new_empty(x.shape[::-1])
    if x.numel():
        strip_kernel[(triton.cdiv(x.shape[0], 32),)](x, out, *x.shape, TILE=32)
    return out
