@triton.jit
def multiply_add(a, x, y):
    return a * x.to(tl.float32) + y.to(tl.float32)


@triton.jit
def saxpy_kernel(x, y, out, a, n, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    x += start
    y += start
    out += start
    lane = tl.arange(0, BLOCK)
    inside = lane < n - start
    tl.store(out + lane, multiply_add(a, tl.load(x + lane, inside), tl.load(y + lane, inside)), inside)


def saxpy(a: float, x: torch.Tensor, y: torch.Tensor, bits: int) -> torch.Tensor:
    """a · x + y by accesses of `bits` bits."""
    if bits not in [32, 64, 128]:
        raise ValueError(f"bits = {bits}: choose 32, 64 or 128")
    out = x.new_empty(x.shape)
    if len(x) == 0:
        return out
    each = bits // (8 * x.element_size())
    saxpy_kernel[-(-len(x) // (128 * each)),](x, y, out, a, len(x), BLOCK=128 * each, num_warps=4)
    return out
