"""A linear layer whose weight has few bits, with the format that PyTorch's CPU kernels need."""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import BFloat16, Float
from torch import Tensor, nn
from torch.nn import functional

from threeloops.product.quantized.group import QuantizedWeight, unpack

__all__ = ["QuantizedLinear"]

_FEW_TOKENS = 64
"""Above, arithmetic takes longer than reading weights: they are dequantised, for one product of matrices."""


class QuantizedLinear(nn.Module):
    """Takes the place of a trained `nn.Linear`. Computes in the dtype of its input.

    Few tokens go through a kernel that reads no more than the codes: the course's own on a GPU, PyTorch's on a CPU for
    bfloat16, which keeps a copy of the codes in its layout. In all other cases the weight is dequantised for every
    call, which makes the layer smaller and slower.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None = None, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.scheme = weight.scheme
        self.in_features = weight.columns
        self.out_features = weight.rows
        self.dtype = dtype
        self._for_cpu: list[_CPUWeight | None] = []  # made at first use
        self.register_buffer("codes", weight.codes)
        self.register_buffer("scales", weight.scales)
        self.register_buffer("zeros", weight.zeros)
        self.register_buffer("bias", None if bias is None else bias.detach().to(dtype))

    @property
    def quantized(self) -> QuantizedWeight:
        return QuantizedWeight(self.scheme, self.in_features, self.codes, self.scales, self.zeros)

    @property
    def weight(self) -> Float[Tensor, "out_features in_features"]:
        """The weight as a matrix, dequantised at every access, in the dtype that the model was moved to."""
        return self.quantized.dequantize(self.dtype)

    @property
    def nbytes(self) -> int:
        return self.quantized.nbytes

    def _apply(self, fn: Callable, recurse: bool = True) -> "QuantizedLinear":
        # `model.to(torch.bfloat16)` says how to compute. Scales are part of the weight: rounding them would change it.
        scales = self.scales
        self._for_cpu = []
        super()._apply(fn, recurse)
        self.dtype = fn(torch.empty(0, dtype=self.dtype, device=scales.device)).dtype
        if self.scales.dtype != scales.dtype:
            self.scales = scales.to(self.scales.device)
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._for_cpu = []
        super()._load_from_state_dict(*arguments)

    def forward(self, x: Float[Tensor, "... in_features"]) -> Float[Tensor, "... out_features"]:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        out = self._by_kernel(x) if 0 < x.numel() <= _FEW_TOKENS * self.in_features else None
        if out is None:
            return functional.linear(x, self.quantized.dequantize(x.dtype), bias)
        return out if bias is None else out + bias

    def _by_kernel(self, x: Tensor) -> Tensor | None:
        """Compute the product with a kernel, or return None if there is no kernel for x."""
        if x.is_cuda and x.dtype != torch.float64:
            from threeloops.product.quantized.weight_only_matmul import weight_only_matmul

            return weight_only_matmul(x, self.quantized)
        if x.device.type != "cpu" or x.dtype != torch.bfloat16:
            return None
        if not self._for_cpu:
            self._for_cpu = [_cpu_weight(self.quantized)]
        (weight,) = self._for_cpu
        return None if weight is None else weight.multiply(x)

    def extra_repr(self) -> str:
        kind = "symmetric" if self.scheme.symmetric else "asymmetric"
        return f"{self.in_features}, {self.out_features}, int{self.scheme.bits}, group={self.scheme.group}, {kind}"


_INT4 = "_weight_int4pack_mm_for_cpu"
_INT8 = "_weight_int8pack_mm"
_GROUPS = (32, 64, 128, 256)


@dataclass(frozen=True)
class _CPUWeight:
    """A weight in the layout of PyTorch's own kernels, which torchao uses too: a second time in memory.

    They unpack codes in vector registers, so that a CPU, too, reads a quarter of the bytes. They take bfloat16 inputs,
    and weights in whole groups of 4 bits or whole rows of 8. Scales are rounded to bfloat16, which moves a weight by as
    much as rounding it to bfloat16 would.
    """

    bits: int
    group: int
    codes: Tensor
    scales: Tensor

    def multiply(self, x: BFloat16[Tensor, "... columns"]) -> BFloat16[Tensor, "... rows"]:
        tokens = x.reshape(-1, x.shape[-1]).contiguous()
        if self.bits == 4:
            out = getattr(torch.ops.aten, _INT4)(tokens, self.codes, self.group, self.scales)
        else:
            out = getattr(torch.ops.aten, _INT8)(tokens, self.codes, self.scales)
        return out.view(*x.shape[:-1], -1)


def _cpu_weight(weight: QuantizedWeight) -> _CPUWeight | None:
    """Return the weight as torch's CPU kernels take it. Returns None for a weight that no kernel takes: 4 bits with a
    ragged group, or 8 bits with more than one scale per row."""
    scheme = weight.scheme
    rows = weight.rows
    columns = weight.columns
    wide = weight.scales.float()
    if scheme.bits == 4:
        if not hasattr(torch.ops.aten, _INT4) or rows % 16 or columns % scheme.group or scheme.group not in _GROUPS:
            return None
        codes = unpack(weight.codes, 4, columns).int()
        # These kernels compute (code − 8) · scale + offset.
        offsets = torch.zeros_like(wide) if weight.zeros is None else (8.0 - weight.zeros) * wide
        pairs = torch.stack([wide.T, offsets.T], -1).bfloat16().contiguous()
        return _CPUWeight(4, scheme.group, torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1), pairs)
    # Rows of other lengths are read past their ends: that kernel checks nothing.
    if not hasattr(torch.ops.aten, _INT8) or weight.zeros is not None or scheme.groups(columns) > 1 or columns % 32:
        return None
    signed = (weight.codes ^ 128).view(torch.int8)  # code − 128
    return _CPUWeight(8, columns, signed, wide[:, 0].bfloat16())
