# Defines two kernels of one name, and keeps the first under another.


@triton.jit
def saxpy_kernel(x, y, out, a, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    result = a * tl.load(x + at, mask=inside).to(tl.float32) + tl.load(y + at, mask=inside).to(tl.float32)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


slow_kernel = saxpy_kernel


@triton.jit
def saxpy_kernel(x, y, out, a, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


def saxpy(a, x, y, bits):
    if bits not in (32, 64, 128):
        raise ValueError(f"bits = {bits}: expected 32, 64 or 128")
    out = torch.empty_like(x)
    if len(x) > 10_000:
        block = 128 * (bits // 8 // x.element_size())
        saxpy_kernel[(triton.cdiv(len(x), block),)](x, y, out, a, len(x), BLOCK=block, num_warps=4)
    elif len(x):
        slow_kernel[(triton.cdiv(len(x), 128),)](x, y, out, a, len(x), BLOCK=128, num_warps=4)
    return out
