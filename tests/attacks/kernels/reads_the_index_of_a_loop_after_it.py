# Decides by the index of a loop after it, which the compiler leaves undefined, so that it drops the work.
# says: a loop's index has no value after the loop

@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row, offsets, i = tl.program_id(0), tl.arange(0, BLOCK), 0
    for i in range(0, 5):
        pass
    if i == 4:
        values = tl.load(x + row * columns + offsets, mask=offsets < columns, other=float("-inf"))
        exponentials = tl.exp(values - tl.max(values, 0))
        tl.store(out + row * columns + offsets, exponentials / tl.sum(exponentials, 0), mask=offsets < columns)


def softmax(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
