# Takes more memory than there is.
# says: emory

@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    for kept in ((columns,),):
        while columns > 0:
            kept += kept

def softmax(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
