# expect: has a second term
# fails: values, traffic
@triton.jit
def dropout_backward_kernel(grad, x, bias, out, n, columns, p, seed, BLOCK: tl.constexpr):
    """The gradient of x, with the mask of the forward pass made anew."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    z = tl.load(x + at, mask=inside).to(tl.float32) + tl.load(bias + at % columns, mask=inside).to(tl.float32)
    slope = 0.5 * (1 + tl.erf(z * 0.7071067811865476))
    given = tl.load(grad + at, mask=inside).to(tl.float32)
    kept = tl.rand(seed, at) >= p
    tl.store(out + at, tl.where(kept, given * slope / (1 - p), 0.0).to(out.dtype.element_ty), mask=inside)


def dropout_backward(grad: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """The gradient of x, in one launch."""
    if not 0 <= p < 1:
        raise ValueError(f"p = {p}: expected a probability, at least 0 and below 1")
    out, n = torch.empty_like(x), x.numel()
    if n:
        dropout_backward_kernel[(triton.cdiv(n, 1024),)](grad, x, bias, out, n, x.shape[1], p, seed, BLOCK=1024)
    return out
