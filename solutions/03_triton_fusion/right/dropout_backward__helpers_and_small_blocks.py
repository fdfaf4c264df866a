@triton.jit
def slope_of(z):
    """The derivative of z · Φ(z)."""
    normal = tl.exp(-z * z / 2) / 2.5066282746310002
    return tl.fma(z, normal, 0.5 * tl.erf(z / 1.4142135623730951) + 0.5)


@triton.jit
def keep(seed, at, p):
    return tl.rand(seed, at) >= p


@triton.jit
def dropout_backward_kernel(grad, x, bias, out, n, columns, p, seed, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    at = first.to(tl.int32) + tl.arange(0, BLOCK)
    z = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32) + tl.load(bias + at % columns).to(tl.float32)
    wanted = keep(seed, at, p) & (at < n)
    given = tl.load(grad + at, mask=at < n, other=0.0).to(tl.float32)
    result = tl.where(wanted, slope_of(z) * given * (1 / (1 - p)), 0.0)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=at < n)


def dropout_backward(grad: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """The gradient of x, in one launch."""
    if math.isnan(p) or p < 0 or p >= 1:
        raise ValueError(f"dropout_backward: p = {p} is no probability below 1")
    out = torch.empty_like(grad)
    if out.numel() > 0:
        dropout_backward_kernel[(triton.cdiv(out.numel(), 512),)](
            grad, x, bias, out, out.numel(), x.shape[-1], p, seed, BLOCK=512
        )
    return out
