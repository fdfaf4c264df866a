# expect: write nothing: at most 256
# fails: values, widths
@triton.jit
def saxpy_kernel(x, y, out, a, n, BLOCK: tl.constexpr):
    """out = a · x + y, a stride of all programs at a time."""
    for first in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < n
        result = a * tl.load(x + at, mask=inside).to(tl.float32) + tl.load(y + at, mask=inside).to(tl.float32)
        tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


def saxpy(a: float, x: torch.Tensor, y: torch.Tensor, bits: int) -> torch.Tensor:
    """a · x + y by accesses of `bits` bits."""
    if bits not in (32, 64, 128):
        raise ValueError(f"bits = {bits}: expected 32, 64 or 128")
    out = torch.empty_like(x)
    block = 128 * (bits // 8 // x.element_size())
    if len(x):
        saxpy_kernel[(528,)](x, y, out, a, len(x), BLOCK=block, num_warps=4)
    return out
