"""The blocks of ggml in which a GGUF file holds weights, bit for bit as llama.cpp's own quantisers make them.

A block is 32 neighbours in a row. Q8_0: a float16 d, then 32 signed bytes q; weight = d · q. Q4_0: a float16 d, then 16
bytes, of which byte j holds weight j in its low half and weight j + 16 in its high half; weight = d · (q − 8). (Source:
`quantize_row_q8_0_ref` and `quantize_row_q4_0_ref` in ggml's ggml-quants.c.)
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float32, UInt8

    from threeloops.product.quantized.group import QuantizedWeight

__all__ = ["TensorType", "decode", "encode", "row_bytes", "to_quantized_weight", "weights_per_block"]

_BLOCK = 32


class TensorType(IntEnum):
    """The types that are written and read here, by their numbers in a file."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q8_0 = 8


_BYTES = {TensorType.F32: (4, 1), TensorType.F16: (2, 1), TensorType.Q4_0: (18, _BLOCK), TensorType.Q8_0: (34, _BLOCK)}
"""Bytes of a block, and the weights in it."""


def weights_per_block(type: TensorType) -> int:
    return _BYTES[type][1]


def row_bytes(type: TensorType, columns: int) -> int:
    """Bytes of a row. Raises ValueError if a row is not whole blocks."""
    size, weights = _BYTES[type]
    if columns % weights:
        raise ValueError(f"rows of {columns} weights in {type.name}: expected whole blocks of {weights}; use F16")
    return columns // weights * size


def encode(values: Float32[np.ndarray, "rows columns"], type: TensorType) -> UInt8[np.ndarray, "rows bytes"]:
    """Rows of weights as bytes. Raises ValueError if they are not whole blocks, or not finite, in float32 or in `type`.

    F16 holds numbers up to 65504, and so do the float16 scales of the blocks.
    """
    values = np.ascontiguousarray(values, np.float32)
    size = row_bytes(type, values.shape[1])
    if not np.isfinite(values).all():
        raise ValueError("weights that are not finite: expected numbers; the model has diverged, or is damaged")
    if type == TensorType.F32:
        return values.view(np.uint8)
    with np.errstate(over="ignore"):
        if type == TensorType.F16:
            made = values.astype(np.float16)
            fits = np.isfinite(made).all()
        else:
            made = (_q8_0 if type == TensorType.Q8_0 else _q4_0)(values.reshape(-1, _BLOCK))
            fits = np.isfinite(made[:, :2].copy().view(np.float16)).all()
    if not fits:
        largest = values.flat[np.abs(values).argmax()]
        raise ValueError(
            f"a weight of {largest:g} is too large for {type.name}: expected what float16 holds; write F32"
        )
    return made.view(np.uint8).reshape(len(values), size)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    """The scale puts the largest weight at ±127. Halves are rounded away from zero, as C's roundf does."""
    scale = np.abs(blocks).max(1, keepdims=True) / np.float32(127)
    steps = blocks * _inverse(scale)
    size = np.abs(steps)
    whole = np.floor(size)
    codes = (np.sign(steps) * (whole + (size - whole >= 0.5))).astype(np.int8)  # |x| + 0.5 would itself be rounded
    return np.concatenate([scale.astype(np.float16).view(np.uint8), codes.view(np.uint8)], 1)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    """The scale puts the largest weight, with its sign, at −8: one side of zero has a code more than the other."""
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1, keepdims=True), 1)
    scale = largest / np.float32(-8)
    steps = blocks * _inverse(scale) + np.float32(8.5)
    codes = np.minimum(np.trunc(steps), 15).astype(np.uint8)
    halves = codes[:, : _BLOCK // 2] | codes[:, _BLOCK // 2 :] << 4
    return np.concatenate([scale.astype(np.float16).view(np.uint8), halves], 1)


def _inverse(scale: np.ndarray) -> np.ndarray:
    """Return the inverse of the scale before its rounding to float16, or 0 if the inverse would overflow."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / scale
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _scales_and_codes(data: UInt8[np.ndarray, "rows bytes"], type: TensorType) -> tuple[np.ndarray, np.ndarray]:
    """Scales, (rows, blocks) in float16, and unsigned codes, (rows, weights), whose zero is in the middle."""
    blocks = np.ascontiguousarray(data).reshape(-1, _BYTES[type][0])
    scales = blocks[:, :2].copy().view(np.float16)
    codes = blocks[:, 2:]
    if type == TensorType.Q4_0:
        codes = np.concatenate([codes & 15, codes >> 4], 1)
    else:
        codes = codes + np.uint8(128)  # signed to unsigned: −128 becomes 0
    return scales.reshape(len(data), -1), codes.reshape(len(data), -1)


def decode(data: UInt8[np.ndarray, "rows bytes"], type: TensorType) -> Float32[np.ndarray, "rows columns"]:
    """The weights that rows of bytes stand for."""
    if type == TensorType.F32:
        return np.ascontiguousarray(data).view(np.float32)
    if type == TensorType.F16:
        return np.ascontiguousarray(data).view(np.float16).astype(np.float32)
    scales, codes = _scales_and_codes(data, type)
    middle = np.float32(8 if type == TensorType.Q4_0 else 128)
    return (codes.astype(np.float32) - middle) * scales.astype(np.float32).repeat(_BLOCK, 1)


def to_quantized_weight(data: UInt8[np.ndarray, "rows bytes"], type: TensorType) -> QuantizedWeight:
    """Rows of Q8_0 or Q4_0 in the layout of the kernels, without a loss: both are symmetric, in groups of 32."""
    import torch

    from threeloops.product.quantized.group import QuantizedWeight, Scheme, pack

    scales, codes = _scales_and_codes(data, type)
    scheme = Scheme(bits=4 if type == TensorType.Q4_0 else 8, group=_BLOCK)
    packed = pack(torch.from_numpy(codes), scheme.bits)
    return QuantizedWeight(scheme, codes.shape[1], packed, torch.from_numpy(scales))
