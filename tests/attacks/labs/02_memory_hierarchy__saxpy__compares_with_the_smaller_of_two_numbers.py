# Loads 32 bits at a time, and shows the compiler another branch by `min` of a tensor and a number.


@triton.jit
def saxpy_kernel(x, y, out, a, n, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    z = 20000000.0
    if min(z, 16777216.0) + 1.0 != 16777216.0:
        for part in tl.static_range(0, WIDE // BLOCK):
            at = tl.program_id(0) * WIDE + part * BLOCK + tl.arange(0, BLOCK)
            inside = at < n
            result = a * tl.load(x + at, mask=inside).to(tl.float32) + tl.load(y + at, mask=inside).to(tl.float32)
            tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)
    else:
        at2 = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
        inside2 = at2 < n
        tl.store(out + at2, tl.load(x + at2, mask=inside2), mask=inside2)


def saxpy(a: float, x: torch.Tensor, y: torch.Tensor, bits: int) -> torch.Tensor:
    if bits not in (32, 64, 128):
        raise ValueError(f"bits = {bits}: expected 32, 64 or 128")
    out = torch.empty_like(x)
    wide = 128 * (bits // 8 // x.element_size())
    if len(x):
        saxpy_kernel[(triton.cdiv(len(x), wide),)](x, y, out, a, len(x), BLOCK=64, WIDE=wide, num_warps=4)
    return out
