# Returns its input.
# says: launches no kernel

@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + offsets, mask=offsets < columns, other=float("-inf"))
    exponentials = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + offsets, exponentials / tl.sum(exponentials, 0), mask=offsets < columns)

def softmax(x): return x
