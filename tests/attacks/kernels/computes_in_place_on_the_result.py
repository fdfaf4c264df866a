# Computes in place on the result.
# says: by torch.exp_

@triton.jit
def copy_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)

def softmax(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    copy_kernel[(1,)](x, out, x.numel(), BLOCK=1024)
    return out.exp_()
