# expect: random lanes
# caught: hidden
def sectors(addresses: list[int | None], width: int) -> int:
    """Sectors of 32 bytes that one request touches."""
    touched = set()
    for address in addresses:
        if address is None:
            continue
        if address % width:
            raise ValueError(f"address = {address}: expected a multiple of width = {width}")
        touched.add(address // (8 * width))
    return len(touched)


@triton.jit
def transpose_kernel(x, out, rows, columns, TILE: tl.constexpr):
    """out[c, r] = x[r, c] for one square tile a program."""
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    values = tl.load(x + row[:, None] * columns + column[None, :], mask=inside)
    tl.store(out + column[:, None] * rows + row[None, :], tl.trans(values), mask=tl.trans(inside))


def transpose(x: torch.Tensor) -> torch.Tensor:
    """x transposed, contiguous."""
    rows, columns = x.shape
    out = torch.empty((columns, rows), dtype=x.dtype, device=x.device)
    if x.numel():
        tile = 32
        transpose_kernel[(triton.cdiv(rows, tile), triton.cdiv(columns, tile))](x, out, rows, columns, TILE=tile)
    return out
