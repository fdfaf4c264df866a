# Launches a program for each element, which computes only this element.
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
    block = 1
    if len(x):
        saxpy_kernel[(len(x),)](x, y, out, a, len(x), BLOCK=block, num_warps=4)
    return out
