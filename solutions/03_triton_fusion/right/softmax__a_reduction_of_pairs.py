@triton.jit
def merge(m, s, m_other, s_other):
    """Two summaries (maximum, sum) as one."""
    larger = tl.maximum(m, m_other)
    safe = tl.where(larger == -float("inf"), 0.0, larger)
    return larger, s * tl.exp(m - safe) + s_other * tl.exp(m_other - safe)


@triton.jit
def softmax_kernel(x, out, columns, row_stride, BLOCK: tl.constexpr):
    """Every element is a summary of itself; tl.reduce merges those of a block."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    m, s = -float("inf"), 0.0
    values = tl.zeros((BLOCK,), tl.float32)
    first = 0
    while first < columns:
        loaded = tl.load(x + row * row_stride + first + at, mask=first + at < columns, other=-float("inf"))
        values = loaded.to(tl.float32)
        m_block, s_block = tl.reduce((values, tl.where(values > -float("inf"), 1.0, 0.0)), 0, merge)
        m, s = merge(m, s, m_block, s_block)
        first += BLOCK
    if columns <= BLOCK:
        tl.store(out + row * columns + at, (tl.exp(values - m) / s).to(out.dtype.element_ty), mask=at < columns)
    else:
        for first in range(0, columns, BLOCK):
            inside = first + at < columns
            values = tl.load(x + row * row_stride + first + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(out + row * columns + first + at, (tl.exp(values - m) / s).to(out.dtype.element_ty), mask=inside)


def softmax(x: torch.Tensor, block: int) -> torch.Tensor:
    """Softmax over the last dimension, at most `block` elements at a time."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if len(x):
        softmax_kernel[(len(x),)](x, out, x.shape[1], x.stride(0), BLOCK=block, num_warps=4)
    return out
