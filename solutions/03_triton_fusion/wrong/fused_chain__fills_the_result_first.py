# expect: bytes that torch moves
@triton.jit
def forward_kernel(x, bias, out, n, columns, p, seed, BLOCK: tl.constexpr):
    """out = dropout(gelu(x + bias)), BLOCK elements a program."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    z = tl.load(x + at, mask=inside).to(tl.float32) + tl.load(bias + at % columns, mask=inside).to(tl.float32)
    gelu = 0.5 * z * (1 + tl.erf(z * 0.7071067811865476))
    kept = tl.rand(seed, at) >= p
    tl.store(out + at, tl.where(kept, gelu / (1 - p), 0.0).to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(grad, x, bias, out, n, columns, p, seed, BLOCK: tl.constexpr):
    """The gradient of x."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    z = tl.load(x + at, mask=inside).to(tl.float32) + tl.load(bias + at % columns, mask=inside).to(tl.float32)
    slope = 0.5 * (1 + tl.erf(z * 0.7071067811865476)) + z * tl.exp(-0.5 * z * z) * 0.3989422804014327
    kept = tl.rand(seed, at) >= p
    given = tl.load(grad + at, mask=inside).to(tl.float32)
    tl.store(out + at, tl.where(kept, given * slope / (1 - p), 0.0).to(out.dtype.element_ty), mask=inside)


def forward(x: torch.Tensor, bias: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """dropout(gelu(x + bias))."""
    require_probability(p)
    out, block = torch.zeros_like(x), 1024
    if x.numel():
        forward_kernel[(triton.cdiv(x.numel(), block),)](x, bias, out, x.numel(), x.shape[1], p, seed, BLOCK=block)
    return out


def backward(grad: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """The gradient of x, with the mask of `forward` made anew."""
    require_probability(p)
    out, block = torch.zeros_like(x), 1024
    if x.numel():
        backward_kernel[(triton.cdiv(x.numel(), block),)](
            grad, x, bias, out, x.numel(), x.shape[1], p, seed, BLOCK=block
        )
    return out


def require_probability(p: float) -> None:
    if not 0 <= p < 1:
        raise ValueError(f"p = {p}: expected a probability, at least 0 and below 1")
