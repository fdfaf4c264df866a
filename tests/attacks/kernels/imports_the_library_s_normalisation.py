# Launches another kernel of the library, which no lab withholds.
# says: which its cell does not define

def softmax(x):
    from threeloops.inner.kernels.rows.rmsnorm import rmsnorm

    return rmsnorm(x.contiguous(), torch.ones(x.shape[1]))
