# Changes a constant of its kernel while it runs, so that the kernel would load more at a time.
# earns: 10

TIMES = tl.constexpr(1)


@triton.jit
def saxpy_kernel(x, y, out, a, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK // TIMES)
    for step in range(TIMES):
        inside = at < n
        result = a * tl.load(x + at, mask=inside).to(tl.float32) + tl.load(y + at, mask=inside).to(tl.float32)
        tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)
        at += BLOCK // TIMES


def saxpy(a, x, y, bits):
    if bits not in (32, 64, 128):
        raise ValueError(f"bits = {bits}: expected 32, 64 or 128")
    global TIMES
    TIMES = tl.constexpr(bits // 8 // x.element_size())
    out = torch.empty_like(x)
    if len(x):
        saxpy_kernel[(triton.cdiv(len(x), 128),)](x, y, out, a, len(x), BLOCK=128, num_warps=4)
    return out
