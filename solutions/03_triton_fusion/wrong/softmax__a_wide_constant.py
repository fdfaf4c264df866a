# expect: the largest tile has
# fails: blocks
WIDE = tl.constexpr(4096)


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    start = tl.program_id(0) * columns
    at = tl.arange(0, WIDE)
    values = tl.load(x + start + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    maximum = tl.max(values, axis=0)
    total = tl.sum(tl.exp(values - maximum), axis=0)
    if columns > BLOCK:
        values = tl.load(x + start + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    tl.store(out + start + at, (tl.exp(values - maximum) / total).to(out.dtype.element_ty), mask=at < columns)


def softmax(x: torch.Tensor, block: int) -> torch.Tensor:
    """Softmax over the last dimension, in tiles of at most `block` elements."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    if rows:
        softmax_kernel[(rows,)](x, out, columns, BLOCK=block)
    return out
