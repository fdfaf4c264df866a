@triton.jit
def saxpy_kernel(x, y, out, a, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    right = tl.load(y + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(
        out + at, tl.fma(left, tl.full((BLOCK,), 0.0, tl.float32) + a, right).to(out.dtype.element_ty), mask=at < n
    )


def saxpy(a: float, x: torch.Tensor, y: torch.Tensor, bits: int) -> torch.Tensor:
    """a · x + y by accesses of `bits` bits: whole blocks first, and the rest by a launch of its own."""
    if bits != 32 and bits != 64 and bits != 128:
        raise ValueError(f"bits = {bits}: no such width")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = 16 * bits // x.element_size()
    whole = x.shape[0] // block * block
    if whole:
        saxpy_kernel[(whole // block,)](x, y, out, a, whole, BLOCK=block, num_warps=4)
    if whole < x.shape[0]:
        saxpy_kernel[(1,)](x[whole:], y[whole:], out[whole:], a, x.shape[0] - whole, BLOCK=block, num_warps=4)
    return out
