"""bfloat16 and fp8 for NumPy, which has neither: decode bit patterns to exact float32 values, and encode values with
one rounding.

Triton's interpreter keeps such numbers as unsigned integers of 16 or 8 bits. Rounding is to nearest, ties to even, or
toward zero if the caller asks for it. Rounding twice (to float32, then to bfloat16) can land on the wrong neighbour, so
wider inputs pass through "round to odd", whose last bit records that something was cut off (Boldo and Melquiond,
"Emulation of FMA and correctly rounded sums", IEEE Transactions on Computers 57(4), 2008).

`precision.formats` defines the formats, but needs a dozen passes over an array. This module has to be faster, because
every operation of a kernel uses it. It looks up fp8 in tables that `precision.formats` computed, and converts bfloat16
with a shift.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from threeloops.inner.precision.formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FloatFormat

__all__ = ["Array", "BF16", "FORMATS", "Format", "multiply_add", "round_toward_zero"]

Array = np.ndarray


@dataclass(frozen=True)
class Format:
    """A floating-point format of at most 16 bits, by the name of its Triton dtype."""

    name: str
    exact: FloatFormat

    def decode(self, bits: Array) -> Array:
        """Return the exact float32 values of bit patterns."""
        if self.exact.bits == 16:
            return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return self._values[bits]

    @np.errstate(over="ignore", invalid="ignore")  # infinity and NaN are answers here
    def encode(self, values: Array, *, toward_zero: bool = False) -> Array:
        """Return the bit patterns of float, integer or bool values of any width, rounded once."""
        if values.dtype.kind != "f":
            values = _integers_to_odd_float64(values)
        if values.dtype == np.float64:
            values = _float64_to_odd_float32(values)
        bits = np.asarray(values, dtype=np.float32).view(np.uint32)
        if self.exact.bits == 16:
            return _encode_bfloat16(bits, toward_zero=toward_zero)
        cut_off = (bits & np.uint32(0xFFFF)) != 0
        upper_to_odd = (bits >> np.uint32(16)) | cut_off
        return (self._codes_toward_zero if toward_zero else self._codes)[upper_to_odd]

    @cached_property
    def _values(self) -> Array:
        return self.exact.decode(np.arange(256)).astype(np.float32)

    @cached_property
    def _codes(self) -> Array:
        """The nearest pattern to every bfloat16."""
        return self.exact.encode(_ALL_BFLOAT16)

    @cached_property
    def _codes_toward_zero(self) -> Array:
        return self.exact.encode(_ALL_BFLOAT16, "toward-zero")


BF16 = Format("bf16", BFLOAT16)
_FP8E4NV = Format("fp8e4nv", FLOAT8_E4M3FN)
# Infinities saturate too, as with `cvt.rn.satfinite` on NVIDIA's GPUs.
_FP8E5 = Format("fp8e5", replace(FLOAT8_E5M2, overflow="saturate"))
FORMATS = {format.name: format for format in (BF16, _FP8E4NV, _FP8E5)}
_ALL_BFLOAT16 = BF16.decode(np.arange(2**16, dtype=np.uint16))


def _encode_bfloat16(bits: Array, *, toward_zero: bool) -> Array:
    """Return the upper half of float32. A carry out of the mantissa correctly raises the exponent, up to infinity."""
    upper = bits >> np.uint32(16)
    if not toward_zero:
        upper = (bits + ((upper & np.uint32(1)) + np.uint32(0x7FFF))) >> np.uint32(16)
    upper = upper.astype(np.uint16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    if nan.any():
        upper = np.where(nan, np.uint16(BFLOAT16.nan_code), upper)
    return upper


def round_toward_zero(values: Array, dtype: type[np.floating]) -> Array:
    """Cut off `values` to a narrower NumPy float. Too large ones become the largest finite number."""
    rounded = values.astype(dtype)
    return np.where(np.abs(rounded) > np.abs(values), np.nextafter(rounded, dtype(0)), rounded)


def _float64_to_odd_float32(values: Array) -> Array:
    """Return float32 values that round to any format of at most 22 significant bits exactly as `values` do."""
    rounded = values.astype(np.float32)
    inexact_and_even = (rounded != values) & (rounded.view(np.uint32) & np.uint32(1) == 0) & ~np.isnan(values)
    toward = np.where(values > rounded, np.float32(np.inf), np.float32(-np.inf))
    return np.where(inexact_and_even, np.nextafter(rounded, toward), rounded)


def _integers_to_odd_float64(values: Array) -> Array:
    """Return float64 values that round to any format of at most 24 significant bits exactly as these integers do."""
    if values.dtype.itemsize < 8:
        return values.astype(np.float64)
    shifted = (values >> 20) | ((values & 0xFFFFF) != 0)
    direct = values.astype(np.float64)
    return np.where(np.abs(direct) < 2**53, direct, np.ldexp(shifted.astype(np.float64), 20))


@np.errstate(invalid="ignore")
def multiply_add(x: Array, y: Array, z: Array) -> Array:
    """Return x·y + z as float64 rounded to odd, for float32 or narrower operands. Rounded to their format, it is the
    fused result. A product of two float32 is exact in float64; Knuth's two-sum recovers the rounding error of the sum.
    """
    product = x.astype(np.float64) * y.astype(np.float64)
    addend = z.astype(np.float64)
    total = product + addend
    # Only a midpoint between two narrower numbers would round wrongly, and that ends in 28 zeros.
    if (total.view(np.uint64) & np.uint64(2**28 - 1)).all():
        return total
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    inexact_and_even = np.isfinite(total) & (lost != 0) & (total.view(np.uint64) & np.uint64(1) == 0)
    return np.where(inexact_and_even, np.nextafter(total, np.where(lost > 0, np.inf, -np.inf)), total)
