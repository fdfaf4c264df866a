@triton.jit
def dropout_backward_kernel(grad, x, bias, out, n, columns, p, seed, BLOCK: tl.constexpr):
    """Programs that take blocks in turn."""
    step = tl.num_programs(0) * BLOCK
    for first in range(tl.program_id(0) * BLOCK, n, step):
        at = first + tl.arange(0, BLOCK)
        inside = at < n
        z = tl.load(x + at, mask=inside).to(tl.float32) + tl.load(bias + at % columns, mask=inside).to(tl.float32)
        slope = 0.5 + 0.5 * tl.erf(z * 0.7071067811865476) + z * tl.exp(z * z / -2) * 0.3989422804014327
        given = tl.load(grad + at, mask=inside).to(tl.float32) / (1 - p)
        result = tl.where(tl.rand(seed, at) < p, 0.0, given * slope)
        tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)


def dropout_backward(grad: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """The gradient of x, by a program per SM."""
    if not (p >= 0 and p < 1):
        raise ValueError(f"p = {p} is no probability below 1")
    out = torch.empty_like(x)
    if x.numel():
        dropout_backward_kernel[(132,)](grad, x, bias, out, x.numel(), x.shape[1], p, seed, BLOCK=256)
    return out
