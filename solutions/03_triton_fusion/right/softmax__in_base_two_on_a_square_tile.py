LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def load(x, at, columns):
    """Logits, −inf beyond the end."""
    return tl.load(x + at, mask=at < columns, other=float("-inf")).to(tl.float32)


@triton.jit
def power(x):
    """The exponential by base two."""
    return tl.exp2(x * LOG2E)


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    """The block as two rows of BLOCK / 2."""
    x += tl.program_id(0) * columns
    out += tl.program_id(0) * columns
    at = tl.arange(0, 2)[:, None] * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
    values = load(x, at, columns)
    m = tl.max(values)
    s = tl.sum(power(values - tl.where(m == float("-inf"), 0.0, m)))
    for first in range(BLOCK, columns, BLOCK):
        values = load(x, first + at, columns)
        larger = tl.maximum(m, tl.max(tl.max(values, axis=1), axis=0))
        if larger > float("-inf"):
            s = s * power(m - larger) + tl.sum(tl.sum(power(values - larger), axis=1), axis=0)
            m = larger
    if columns <= BLOCK:
        tl.store(out + at, (power(values - m) / s).to(out.dtype.element_ty), mask=at < columns)
    else:
        for first in range(0, columns, BLOCK):
            result = power(load(x, first + at, columns) - m) / s
            tl.store(out + first + at, result.to(out.dtype.element_ty), mask=first + at < columns)


def softmax(x: torch.Tensor, block: int) -> torch.Tensor:
    """Softmax over the last dimension, at most `block` elements at a time."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    if rows:
        softmax_kernel[(rows,)](x, out, columns, BLOCK=block)
    return out
