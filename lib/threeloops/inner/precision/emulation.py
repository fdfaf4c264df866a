"""Low precision without the hardware: compute in float32, and round what would have been stored.

A tensor core multiplies 16-bit numbers exactly and sums in float32, so rounding the inputs and the result of a float32
product is what it does, up to the order of the sum. The rounding is torch's own cast, which the tests hold to
`threeloops.inner.formats` bit by bit.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = dtype
        return x.to(dtype).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.to(ctx.dtype).to(gradient.dtype), None


def stored_as(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` as it comes back from memory in `dtype`: rounded, overflow included, in its own dtype. The gradient that
    flows back through this point is stored in `dtype` too, and may underflow to zero there or overflow to infinity."""
    if dtype == x.dtype:
        return x
    return _Rounded.apply(x, dtype)
