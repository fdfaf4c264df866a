# Returns uninitialised memory, in which values of an earlier submission might lie.
# says: value      nan

@triton.jit
def softmax_kernel(left_over, out, columns, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(left_over + row * columns + offsets, mask=offsets < columns, other=float("-inf"))
    exponentials = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + offsets, exponentials / tl.sum(exponentials, 0), mask=offsets < columns)

def softmax(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](torch.empty_like(x), out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
