# expect: rearranges elements with torch
# fails: values, sectors
@triton.jit
def transpose_kernel(x, out, rows, columns, pitch, TILE: tl.constexpr):
    """out[r, c] = x[r, c] for one square tile a program; a row of out begins `pitch` elements after the one before."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    values = tl.load(x + row[:, None] * columns + column[None, :], mask=inside)
    tl.store(out + row[:, None] * pitch + column[None, :], values, mask=inside)


def copied(x: torch.Tensor, pitch: int) -> torch.Tensor:
    """The rows of x, `pitch` elements apart."""
    rows, columns = x.shape
    out = torch.empty((rows, pitch), dtype=x.dtype, device=x.device)
    if x.numel():
        grid = (triton.cdiv(rows, 32), triton.cdiv(columns, 32))
        transpose_kernel[grid](x, out, rows, columns, pitch, TILE=32)
    return out


def transpose(x: torch.Tensor) -> torch.Tensor:
    """x transposed, contiguous."""
    rows, columns = x.shape
    y = x.new_empty(x.numel() + 2 * rows * columns + rows + columns)
    y[rows * columns : rows * columns + x.numel()] = copied(x, columns).view(-1)
    out = x.new_empty((columns + 2 * rows) * rows)
    width = columns + rows - 1  # c − r runs from 1 − rows to columns − 1
    if x.numel():
        first, diagonal = rows - 1, (rows, width)
        source = y.as_strided(diagonal, (columns + 1, 1), rows * columns - first)
        out.as_strided(diagonal, (rows + 1, rows), 0).copy_(source)
    return (
        out[(rows - 1) * rows : (rows - 1 + columns) * rows].view(columns, rows)
        if x.numel()
        else out[:0].view(columns, rows)
    )
