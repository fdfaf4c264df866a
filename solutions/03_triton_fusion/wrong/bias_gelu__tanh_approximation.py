# expect: tanh approximation
# fails: values
@triton.jit
def bias_gelu_kernel(x, bias, out, n, columns, BLOCK: tl.constexpr):
    """out = gelu(x + bias), BLOCK elements per program."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    z = tl.load(x + at, mask=inside).to(tl.float32) + tl.load(bias + at % columns, mask=inside).to(tl.float32)
    u = 0.7978845608028654 * (z + 0.044715 * z * z * z)
    gelu = z * tl.sigmoid(2 * u)
    tl.store(out + at, gelu.to(out.dtype.element_ty), mask=inside)


def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """gelu(x + bias) in one launch."""
    out = torch.empty_like(x)
    bias_gelu_kernel[(triton.cdiv(x.numel(), 1024),)](x, bias, out, x.numel(), x.shape[1], BLOCK=1024)
    return out
