# Works in a loop that counts down by a variable: it has steps in the interpreter, and none when it is compiled.
# says: a step that is not a constant must be at least 1

@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row, offsets, step = tl.program_id(0), tl.arange(0, BLOCK), -1
    for _ in range(1, 0, step):
        values = tl.load(x + row * columns + offsets, mask=offsets < columns, other=float("-inf"))
        exponentials = tl.exp(values - tl.max(values, 0))
        tl.store(out + row * columns + offsets, exponentials / tl.sum(exponentials, 0), mask=offsets < columns)


def softmax(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
