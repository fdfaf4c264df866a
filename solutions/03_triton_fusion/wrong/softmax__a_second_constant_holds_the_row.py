# expect: the largest tile has
# fails: blocks
@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr, ROW: tl.constexpr):
    start = tl.program_id(0) * columns
    at = tl.arange(0, ROW)
    values = tl.load(x + start + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    exponentials = tl.exp(values - tl.max(values, axis=0))
    if columns > BLOCK:
        values = tl.load(x + start + at, mask=at < columns, other=-float("inf")).to(tl.float32)
        exponentials = tl.exp(values - tl.max(values, axis=0))
    result = exponentials / tl.sum(exponentials, axis=0)
    tl.store(out + start + at, result.to(out.dtype.element_ty), mask=at < columns)


def softmax(x: torch.Tensor, block: int) -> torch.Tensor:
    """Softmax over the last dimension, in tiles of at most `block` elements."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    if rows:
        softmax_kernel[(rows,)](x, out, columns, BLOCK=block, ROW=triton.next_power_of_2(columns))
    return out
