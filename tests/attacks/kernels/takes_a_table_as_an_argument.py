# Gives its kernel a tuple of numbers as a constant, longer than a recording may hold.
# says: Expected `array` of length <= 64 - at `$.steps[1].constants[...]`

@triton.jit
def softmax_kernel(x, out, columns, TABLE: tl.constexpr, BLOCK: tl.constexpr):
    row, offsets = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + offsets, mask=offsets < columns, other=float("-inf"))
    exponentials = tl.exp(values - tl.max(values, 0))
    tl.store(out + row * columns + offsets, exponentials / tl.sum(exponentials, 0), mask=offsets < columns)

def softmax(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], TABLE=(0.5,) * 1000, BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
