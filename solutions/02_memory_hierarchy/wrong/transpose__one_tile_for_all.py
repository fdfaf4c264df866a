# expect: expected at most 4,096, which fit into registers
# fails: sectors
@triton.jit
def transpose_kernel(x, out, rows, columns, TILE: tl.constexpr):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    values = tl.load(x + row[:, None] * columns + column[None, :], mask=inside)
    tl.store(out + column[None, :] * rows + row[:, None], values, mask=inside)


def transpose(x: torch.Tensor) -> torch.Tensor:
    """x transposed, contiguous."""
    rows, columns = x.shape
    out = torch.empty((columns, rows), dtype=x.dtype, device=x.device)
    if x.numel():
        transpose_kernel[(triton.cdiv(rows, 128), triton.cdiv(columns, 128))](x, out, rows, columns, TILE=128)
    return out
