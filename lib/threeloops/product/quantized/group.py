"""Weights of 8 or 4 bits: whole numbers that share a scale with their neighbours, rounded to the nearest.

A row of a linear layer's weight, (out_features, in_features), is cut along the inputs into groups. A group stores one
scale, in asymmetric schemes also one zero point, and an unsigned code of `bits` bits per weight:

    weight ≈ scale · (code − zero)

This is the format of GPTQ, AWQ and GGUF too. They differ in how scales and codes are chosen.
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

__all__ = ["QuantizedWeight", "Scheme", "from_codes", "grid_of", "pack", "quantize_weight", "to_codes", "unpack"]

_SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Scheme:
    """How weights are stored. Raises ValueError naming the field that is out of range.

    `group` neighbours along the inputs share a scale; the last group of a row may be shorter, and a group as long as
    the row gives one scale per row. `symmetric` schemes have no zero points: zero is the code in the middle.
    """

    bits: int = 4
    group: int = 128
    symmetric: bool = True
    scale_dtype: torch.dtype = torch.float16

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ValueError(f"bits = {self.bits!r}: expected 4 or 8")
        if not isinstance(self.group, int) or self.group < 16 or self.group & (self.group - 1):
            raise ValueError(
                f"group = {self.group!r}: expected a power of two, at least 16, so that a tile of a kernel lies in one "
                "group; for one scale per row take one that is at least as long as the longest row"
            )
        if self.scale_dtype not in _SCALE_DTYPES:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in _SCALE_DTYPES)
            raise ValueError(f"scale_dtype = {self.scale_dtype!r}: expected one of {names}")

    @property
    def levels(self) -> int:
        return 2**self.bits

    def groups(self, columns: int) -> int:
        """Groups of a row."""
        return -(-columns // self.group)

    def nbytes(self, rows: int, columns: int) -> int:
        """Codes, each row padded to whole bytes, then a scale and, if asymmetric, a byte of zero point per group.

        With 4 bits, groups of 128 and 16-bit scales that is 4.125 bits per weight, 3.88 times less than bfloat16.
        """
        per_group = self.scale_dtype.itemsize + (0 if self.symmetric else 1)
        return rows * (-(-columns * self.bits // 8) + self.groups(columns) * per_group)


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight, (rows, columns), in the layout that kernels read.

    `codes` is (rows, columns) for 8 bits. For 4 bits it is (rows, ⌈columns / 2⌉), two codes per byte: column 2j in the
    low half of byte j, column 2j + 1 in the high half. `scales` and `zeros` are (rows, groups).
    """

    scheme: Scheme
    columns: int
    codes: UInt8[Tensor, "rows bytes"]
    scales: Float[Tensor, "rows groups"]
    zeros: UInt8[Tensor, "rows groups"] | None = None

    @property
    def rows(self) -> int:
        return self.codes.shape[0]

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + (0 if self.zeros is None else self.zeros.nbytes)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "rows columns"]:
        """The weights that the codes stand for, computed in float32 or wider and rounded once, to `dtype`."""
        wide = torch.promote_types(dtype, torch.float32)
        groups = self.scheme.groups(self.columns)
        group = min(self.scheme.group, self.columns)
        zeros = self.scheme.levels // 2 if self.zeros is None else self.zeros[:, :, None].to(wide)
        values = unpack(self.codes, self.scheme.bits, self.columns).to(wide)
        if ragged := groups * group - self.columns:
            values = torch.nn.functional.pad(values, (0, ragged))
        values = values.view(self.rows, groups, group).sub_(zeros).mul_(self.scales[:, :, None].to(wide))
        return values.view(self.rows, -1)[:, : self.columns].to(dtype)


def quantize_weight(weight: Float[Tensor, "rows columns"], scheme: Scheme) -> QuantizedWeight:
    """Round every weight to the nearest value that its group can hold.

    A weight moves by at most scale / 2, where the scale is 2·max|w| / (levels − 1) of its group, or (max − min) /
    (levels − 1) with zero points. Rounding the scale itself to its dtype can add (levels − 1) times that rounding.
    Raises ValueError for weights that are not a matrix, not finite, or too large for the dtype of the scales.
    """
    if weight.ndim != 2 or not weight.numel():
        raise ValueError(f"weight has shape {tuple(weight.shape)}: expected (rows, columns), neither of them 0")
    rows, columns = weight.shape
    groups = scheme.groups(columns)
    group = min(scheme.group, columns)
    # Zeros at the end change no group's grid, since every grid has a code for 0.
    grouped = torch.nn.functional.pad(weight.detach(), (0, groups * group - columns)).view(rows, groups, group)
    scales, zeros = grid_of(grouped, scheme)
    codes = to_codes(grouped, scales[:, :, None], zeros[:, :, None], scheme).view(rows, -1)[:, :columns]
    return QuantizedWeight(scheme, columns, pack(codes, scheme.bits), scales, None if scheme.symmetric else zeros)


def grid_of(weights: Float[Tensor, "... group"], scheme: Scheme) -> tuple[Float[Tensor, "..."], UInt8[Tensor, "..."]]:
    """Scale, in its dtype, and zero point of each group. All numbers from the least to the largest weight, and 0, are
    at most half a step from one that the grid holds.
    """
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    if not weights.isfinite().all():
        raise ValueError(
            f"{int((~weights.isfinite()).sum())} weights are not finite: expected numbers; the model has diverged, or "
            "its file is damaged"
        )
    if scheme.symmetric:
        low = -weights.abs().amax(-1)
        high = weights.abs().amax(-1)
    else:
        low = weights.amin(-1).clamp(max=0)
        high = weights.amax(-1).clamp(min=0)
    exact = (high - low) / (scheme.levels - 1)
    scales = exact.to(scheme.scale_dtype)
    if not scales.isfinite().all():
        raise ValueError(
            f"scale = {float(exact.max()):.3g}: expected at most {torch.finfo(scheme.scale_dtype).max:.3g}, the "
            f"largest {scheme.scale_dtype}; take scale_dtype = torch.bfloat16"
        )
    if scheme.symmetric:
        return scales, torch.full_like(scales, scheme.levels // 2, dtype=torch.uint8)
    steps = torch.where(scales > 0, -low / scales.to(low), 0)  # of groups that hold nothing but 0 the scale is 0
    return scales, steps.round().clamp(0, scheme.levels - 1).to(torch.uint8)


def to_codes(weights: Tensor, scales: Tensor, zeros: Tensor, scheme: Scheme) -> Tensor:
    """The nearest code of each weight, as uint8, unpacked. Scales and zero points are broadcast."""
    wide = torch.promote_types(weights.dtype, torch.float32)
    steps = torch.where(scales > 0, weights.to(wide) / scales.to(wide), 0)
    return (steps.round() + zeros).clamp(0, scheme.levels - 1).to(torch.uint8)


def from_codes(codes: Tensor, scales: Tensor, zeros: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weights that unpacked codes stand for. Scales and zero points are broadcast."""
    return (codes.to(dtype) - zeros.to(dtype)) * scales.to(dtype)


def pack(codes: UInt8[Tensor, "rows columns"], bits: int) -> UInt8[Tensor, "rows bytes"]:
    """Two codes per byte if they have 4 bits: even columns in the low half, odd ones in the high half."""
    if bits == 8:
        return codes.contiguous()
    codes = torch.nn.functional.pad(codes, (0, codes.shape[1] % 2))
    return codes[:, ::2] | codes[:, 1::2] << 4


def unpack(packed: UInt8[Tensor, "rows bytes"], bits: int, columns: int) -> UInt8[Tensor, "rows columns"]:
    """The inverse of `pack`."""
    if bits == 8:
        return packed
    return torch.stack((packed & 15, packed >> 4), -1).flatten(1)[:, :columns]
