# Doubles a tile until memory is gone.
# says: numel (2097152) exceeds

@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    wide = tl.zeros((1024,), tl.float32)
    for _ in tl.static_range(64):
        wide = tl.join(wide, wide)
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + offsets, mask=offsets < columns, other=float("-inf"))
    exponentials = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + offsets, exponentials / tl.sum(exponentials, 0), mask=offsets < columns)

def softmax(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
