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
    width = triton.next_power_of_2(max(columns, 1))
    now = copied(x, width).view(-1)
    for _ in range(
        width.bit_length() - 1
    ):  # exchange the halves of the column's number with those of the row's, bit by bit
        after, half = torch.empty_like(now), now.numel() // 2
        pairs = now.view(-1, 2)
        after[:half], after[half:] = pairs[:, 0], pairs[:, 1]
        now = after
    out = x.new_empty(columns, rows)
    return out.copy_(now.view(width, rows)[:columns])
