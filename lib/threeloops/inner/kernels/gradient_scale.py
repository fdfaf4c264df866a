"""Multiply a gradient that is already there by what the loss turned out to be multiplied with.

A fused loss makes its gradient in the forward pass, before it knows what follows. Usually nothing does: the loss is the
end, the factor is 1, and the gradient is right as it stands. The kernel reads the factor on the device, where asking
for it would stall the host, and returns at once if it is 1.
"""

import torch
import triton
import triton.language as tl

from threeloops.inner.kernels.configuration import Configuration

CONFIGURATION = Configuration({"BLOCK": 4096}, num_warps=8)


@triton.jit
def scale_rows_kernel(gradient_ptr, factor_ptr, columns, row_stride, factor_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    factor = tl.load(factor_ptr + row * factor_stride).to(tl.float32)
    if factor != 1.0:
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        pointer = gradient_ptr + row * row_stride + column
        scaled = tl.load(pointer, mask=column < columns, other=0.0).to(tl.float32) * factor
        tl.store(pointer, scaled.to(gradient_ptr.dtype.element_ty), mask=column < columns)


def scale_rows(gradient: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """gradient (rows, columns), rows contiguous, times `factor`, in place: a scalar tensor, or one number a row."""
    rows, columns = gradient.shape
    if gradient.numel():
        grid = (rows, triton.cdiv(columns, CONFIGURATION.constants["BLOCK"]))
        factor_stride = factor.stride(0) if factor.ndim else 0
        scale_rows_kernel[grid](gradient, factor, columns, gradient.stride(0), factor_stride, **CONFIGURATION.options())
    return gradient
