# expect: a program holds
# fails: values, blocks
@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    start = tl.program_id(0) * columns
    at = tl.arange(0, BLOCK)
    maximum = -float("inf")
    blocks = ()
    for first in range(0, columns, BLOCK):
        inside = first + at < columns
        blocks += (tl.load(x + start + first + at, mask=inside, other=-float("inf")).to(tl.float32),)
    for i in range(len(blocks)):
        maximum = tl.maximum(maximum, tl.max(blocks[i], axis=0))
    total = 0.0
    for i in range(len(blocks)):
        total += tl.sum(tl.exp(blocks[i] - maximum), axis=0)
    for i in range(len(blocks)):
        inside = i * BLOCK + at < columns
        values = blocks[i]
        if columns > BLOCK:
            values = tl.load(x + start + i * BLOCK + at, mask=inside, other=-float("inf")).to(tl.float32)
        result = tl.exp(values - maximum) / total
        tl.store(out + start + i * BLOCK + at, result.to(out.dtype.element_ty), mask=inside)


def softmax(x: torch.Tensor, block: int) -> torch.Tensor:
    """Softmax over the last dimension, at most `block` elements at a time."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    if rows:
        softmax_kernel[(rows,)](x, out, columns, BLOCK=block)
    return out
