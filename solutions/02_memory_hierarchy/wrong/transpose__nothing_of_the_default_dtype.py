# expect: 0 × 5 matrix of float16
# fails: values
@triton.jit
def transpose_kernel(x, out, rows, columns, TILE: tl.constexpr):
    """out[c, r] = x[r, c]."""
    r = tl.program_id(0) * TILE + tl.arange(0, TILE)
    c = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = (r[:, None] < rows) & (c[None, :] < columns)
    tile = tl.load(x + r[:, None] * columns + c[None, :], mask=mask)
    tl.store(out + c[:, None] * rows + r[None, :], tl.trans(tile), mask=tl.trans(mask))


def transpose(x: torch.Tensor) -> torch.Tensor:
    """x transposed, contiguous."""
    rows, columns = x.shape
    if x.numel() == 0:
        return torch.empty(columns, rows)
    out = torch.empty(columns, rows, dtype=x.dtype, device=x.device)
    transpose_kernel[(triton.cdiv(rows, 32), triton.cdiv(columns, 32))](x, out, rows, columns, TILE=32)
    return out
