# Launches a program for each element, of which all but a few have nothing to do.
# earns: 3


@triton.jit
def saxpy_kernel(x, y, out, a, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    result = a * tl.load(x + at, mask=inside).to(tl.float32) + tl.load(y + at, mask=inside).to(tl.float32)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


def saxpy(a, x, y, bits):
    if bits not in (32, 64, 128):
        raise ValueError(f"bits = {bits}: expected 32, 64 or 128")
    out = torch.empty_like(x)
    block = 128 * (bits // 8 // x.element_size())
    if len(x):
        saxpy_kernel[(len(x),)](x, y, out, a, len(x), BLOCK=block, num_warps=4)
    return out
