# Reads the neighbours of its input through a block pointer that claims a larger tensor.
# says: out-of-bounds in softmax_kernel

@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(tl.make_block_ptr(x, (1 << 20,), (1,), (4096,), (BLOCK,), (0,)))
    exponentials = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + offsets, exponentials / tl.sum(exponentials, 0), mask=offsets < columns)

def softmax(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
