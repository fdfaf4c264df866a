# expect: bytes in the sectors
# fails: sectors
@triton.jit
def transpose_kernel(x, out, rows, columns, TILE: tl.constexpr):
    """out[c, r] = x[r, c] for one square tile a program."""
    row = tl.program_id(0)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < columns
    tl.store(out + column * rows + row, tl.load(x + row * columns + column, mask=inside), mask=inside)


def transpose(x: torch.Tensor) -> torch.Tensor:
    """x transposed, contiguous."""
    rows, columns = x.shape
    out = torch.empty((columns, rows), dtype=x.dtype, device=x.device)
    if x.numel():
        tile = 32
        transpose_kernel[(rows, triton.cdiv(columns, tile))](x, out, rows, columns, TILE=tile)
    return out
