# expect: bits = 96
# fails: edges
@triton.jit
def saxpy_kernel(x, y, out, a, n, BLOCK: tl.constexpr):
    """out = a · x + y, BLOCK elements per program."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    xs = tl.load(x + at, mask=mask).to(tl.float32)
    ys = tl.load(y + at, mask=mask).to(tl.float32)
    tl.store(out + at, a * xs + ys, mask=mask)


def saxpy(a: float, x: torch.Tensor, y: torch.Tensor, bits: int) -> torch.Tensor:
    """a · x + y by accesses of `bits` bits."""
    if bits % 32 or not 32 <= bits <= 128:
        raise ValueError(f"bits = {bits}, expected 32, 64 or 128")
    out = torch.empty_like(x)
    n = x.numel()
    BLOCK = 128 * bits // (8 * x.element_size())
    saxpy_kernel[(triton.cdiv(n, BLOCK),)](x, y, out, a, n, BLOCK=BLOCK, num_warps=4)
    return out
