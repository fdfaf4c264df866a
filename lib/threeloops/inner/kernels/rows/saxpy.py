"""saxpy: y ← a·x + y, the kernel that does nothing but move memory.

Source: BLAS level 1 (Lawson et al., 1979).

Two elements are read and one is written for two FLOPs, so it is as fast as the memory. A kernel can still get the width
of its accesses wrong. Here each thread takes 16 bytes at a time, twice, so that a warp asks for 512 contiguous bytes
and enough requests are in flight. Offsets within a tile have 32 bits and are added to a 64-bit start.
"""

import torch
import triton
import triton.language as tl

from threeloops.inner import costs
from threeloops.inner.kernels import launching
from threeloops.inner.kernels.launching import Configuration

__all__ = ["cost", "reference", "saxpy", "saxpy_kernel"]

_BYTES_PER_THREAD = 32


@triton.jit
def saxpy_kernel(a, x_ptr, y_ptr, out_ptr, elements, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offset = tl.arange(0, BLOCK)
    inside = offset < elements - start
    x = tl.load(x_ptr + start + offset, mask=inside).to(tl.float32)
    y = tl.load(y_ptr + start + offset, mask=inside).to(tl.float32)
    tl.store(out_ptr + start + offset, (a * x + y).to(out_ptr.dtype.element_ty), mask=inside)


def _configuration(bytes_per_element: int) -> Configuration:
    """Return the same configuration on every target: 128 threads, each with 32 bytes of x and 32 of y."""
    return Configuration({"BLOCK": 128 * _BYTES_PER_THREAD // bytes_per_element}, num_warps=4)


def saxpy(a: float, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute a·x + y in float32 and round once. It is not an autograd operator.

    Args:
        a: a scalar.
        x, y: two tensors of one shape and dtype (float16, bfloat16, float32). A tensor that is not contiguous is copied
            first.
    """
    launching.require_tensors(x=x, y=y)
    launching.require_shape("y", y, x.shape, "the shape of x")
    x, y = x.contiguous(), y.contiguous()
    out = torch.empty_like(y)
    if x.numel():
        chosen = _configuration(x.element_size())
        grid = (triton.cdiv(x.numel(), chosen.constants["BLOCK"]),)
        saxpy_kernel[grid](a, x, y, out, x.numel(), **chosen.options())
    return out


def reference(a: float, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return a * x + y


cost = costs.saxpy
