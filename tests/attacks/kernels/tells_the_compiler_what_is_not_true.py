# Shuffles its columns and tells the compiler that they follow each other, so that loads would be wide.
# says: false-hint in softmax_kernel

@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.max_contiguous(tl.arange(0, BLOCK) * 7 % BLOCK, BLOCK)
    values = tl.load(x + row * columns + offsets, mask=offsets < columns, other=float("-inf"))
    exponentials = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + offsets, exponentials / tl.sum(exponentials, 0), mask=offsets < columns)


def softmax(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
