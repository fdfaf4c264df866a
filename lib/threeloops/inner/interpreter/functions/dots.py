"""tl.dot and tl.dot_scaled for the interpreter."""

from typing import Any

import numpy as np
from triton._C.libtriton import ir
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import InterpreterBuilder

from threeloops.inner.interpreter.repairs import format_of, stored, values_of

__all__ = ["dot_scaled", "install"]

_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
"""OCP Microscaling Formats specification 1.0, table 4: E2M1."""

_Handle = Any
_tritons_dot = InterpreterBuilder.create_dot
_tritons_dot_scaled = TritonSemantic.dot_scaled


def _create_dot(
    self: Any, a: _Handle, b: _Handle, d: _Handle, input_precision: Any, max_num_imprecise_acc: Any
) -> _Handle:
    """Compute tl.dot. Products of bfloat16, fp8 and float16 are exact in float32. Their sum is float32, rounded once to
    d's type. float32 operands are not rounded to TF32 first, so the result is more exact than a GPU's default."""
    left = values_of(a)
    right = values_of(b)
    if left.dtype.kind != "f" or np.float64 in (left.dtype, right.dtype):
        return _tritons_dot(self, a, b, d, input_precision, max_num_imprecise_acc)
    product = np.matmul(left.astype(np.float32, copy=False), right.astype(np.float32, copy=False))
    return stored(product + values_of(d), d.dtype.scalar)


def _create_dot_scaled(
    self: Any,
    lhs: _Handle,
    lhs_scale: _Handle | None,
    lhs_format: Any,
    rhs: _Handle,
    rhs_scale: _Handle | None,
    rhs_format: Any,
    fast_math: bool,
    lhs_k_pack: bool,
    rhs_k_pack: bool,
    acc: _Handle,
) -> _Handle:
    """Multiply lhs (…, M, K) and rhs (…, K, N) with one scale for every 32 (or 16) elements along K: lhs_scale (…, M,
    K/32), rhs_scale (…, N, K/32). A byte holds two fp4, the first in its low half, along K or, with k_pack=False,
    across."""
    left = _unpacked(lhs, lhs_format, axis=-1 if lhs_k_pack else -2)
    right = _unpacked(rhs, rhs_format, axis=-2 if rhs_k_pack else -1)
    if lhs_scale is not None:
        left = left * _along_k(lhs_scale, left.shape[-1])
    if rhs_scale is not None:
        right = right * np.swapaxes(_along_k(rhs_scale, right.shape[-2]), -1, -2)
    return stored(np.matmul(left, right) + values_of(acc), acc.dtype.scalar)


def _unpacked(handle: _Handle, format: Any, axis: int) -> np.ndarray:
    """Return the elements of an operand of tl.dot_scaled, as float32."""
    if format != ir.ScaleDotElemTypeTY.E2M1:
        return values_of(handle).astype(np.float32, copy=False)
    packed = np.moveaxis(handle.data.astype(np.uint8), axis, -1)
    pairs = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)
    return np.moveaxis(_FP4[pairs.reshape(*packed.shape[:-1], -1)], -1, axis)


def _along_k(scale: _Handle, k: int) -> np.ndarray:
    """Return a float32 factor for each of the k elements, from biased exponents of two (255 is NaN) or from fp8
    numbers."""
    if format_of(scale) is not None:
        factors = values_of(scale)
    else:
        exponents = scale.data.astype(np.uint8).astype(np.int32)
        factors = np.where(exponents == 255, np.nan, np.ldexp(1.0, exponents - 127)).astype(np.float32)
    return np.repeat(factors, k // factors.shape[-1], axis=-1)


class _FormatName(str):
    @property
    def value(self) -> str:
        return str(self)


def dot_scaled(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute a scaled product. Before triton 3.8, tl.dot_scaled reads `value` of its formats, but the interpreter
    passes plain strings."""
    args = tuple(_FormatName(argument) if isinstance(argument, str) else argument for argument in args)
    return _tritons_dot_scaled(self, *args, **kwargs)


def install() -> None:
    TritonSemantic.dot_scaled = dot_scaled
    InterpreterBuilder.create_dot = _create_dot
    InterpreterBuilder.create_dot_scaled = _create_dot_scaled
