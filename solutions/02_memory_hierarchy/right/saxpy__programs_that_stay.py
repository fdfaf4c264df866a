@triton.jit
def saxpy_kernel(x, y, out, a, n, BLOCK: tl.constexpr):
    """Eight programs that take blocks in turn."""
    for first in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        product = tl.load(x + at, mask=at < n).to(tl.float32) * a
        tl.store(out + at, product + tl.load(y + at, mask=at < n).to(tl.float32), mask=at < n)


def saxpy(a: float, x: torch.Tensor, y: torch.Tensor, bits: int) -> torch.Tensor:
    """a · x + y by accesses of `bits` bits."""
    widths = {32: 4, 64: 8, 128: 16}
    if bits not in widths:
        raise ValueError(f"bits = {bits}, expected one of {list(widths)}")
    out = torch.empty_like(x)
    if x.numel() > 0:
        saxpy_kernel[(8,)](x, y, out, a, x.numel(), BLOCK=128 * widths[bits] // x.element_size(), num_warps=4)
    return out
