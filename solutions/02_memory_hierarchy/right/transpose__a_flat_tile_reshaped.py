@triton.jit
def place(flat, tile_row, tile_column, TILE: tl.constexpr):
    """Row and column in the matrix of the elements of a flat tile."""
    return tile_row * TILE + flat // TILE, tile_column * TILE + flat % TILE


@triton.jit
def transpose_kernel(x, out, rows, columns, TILE: tl.constexpr):
    """One tile, loaded as a run of TILE · TILE elements, and stored as the permuted run."""
    flat = tl.arange(0, TILE * TILE)
    row, column = place(flat, tl.program_id(0), tl.program_id(1), TILE)
    values = tl.load(x + row * columns + column, mask=(row < rows) & (column < columns), other=0)
    turned = tl.reshape(tl.permute(tl.reshape(values, (TILE, TILE)), (1, 0)), (TILE * TILE,))
    column, row = place(flat, tl.program_id(1), tl.program_id(0), TILE)
    tl.store(out + column * rows + row, turned, mask=(row < rows) & (column < columns))


def transpose(x: torch.Tensor) -> torch.Tensor:
    """x transposed, contiguous."""
    x = x.contiguous()
    rows, columns = x.shape
    out = torch.empty_like(x).view(columns, rows)
    if rows * columns > 0:
        transpose_kernel[(triton.cdiv(rows, 16), triton.cdiv(columns, 16))](x, out, rows, columns, TILE=16)
    return out
