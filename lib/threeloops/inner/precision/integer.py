"""Symmetric integer formats: a number is an integer times a scale, and the scale is all the range it has."""

import math
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from threeloops.inner.precision.rounding import Rounding, round_to_integer


@dataclass(frozen=True)
class IntegerFormat:
    """Integers from −`largest` to `largest`, in two's complement; the one code below −`largest` is left out, so that
    x and −x are represented alike. Raises ValueError unless 2 ≤ `bits` ≤ 8: a code is kept in one byte."""

    name: str
    bits: int

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise ValueError(f"bits = {self.bits}: expected 2 to 8, a sign and a magnitude in one byte")

    @property
    def largest(self) -> int:
        return 2 ** (self.bits - 1) - 1

    def scale_for(self, amax: float) -> float:
        """The scale with which `amax`, the largest magnitude to be represented, becomes `largest`; 1 for nothing but
        zeros. Never less than the smallest normal float64: below it the quotient loses its digits, and becomes zero.
        Raises ValueError for an `amax` that is negative or not finite."""
        if not 0 <= amax < math.inf:
            raise ValueError(f"amax = {amax}: expected a finite number ≥ 0; look for NaN or infinity in the tensor")
        return max(amax / self.largest, sys.float_info.min) if amax else 1.0

    def encode(
        self,
        values: ArrayLike,
        scale: float,
        rounding: Rounding = "nearest-even",
        generator: np.random.Generator | None = None,
    ) -> NDArray[np.uint8]:
        """Unsigned codes of value / scale; what is too large saturates, infinities too. Any shape; one byte a code,
        also where half of it would do. Raises ValueError for NaN, which no integer can hold, and a scale ≤ 0."""
        exact = np.asarray(values, np.float64)
        if np.isnan(exact).any():
            raise ValueError(f"{np.isnan(exact).sum()} of {exact.size} values are NaN: {self.name} cannot hold any")
        quotient = np.minimum(np.abs(exact) / _positive(scale), self.largest)
        magnitude = round_to_integer(quotient, rounding, generator).astype(np.int64)
        return (np.where(exact < 0, -magnitude, magnitude) & (2**self.bits - 1)).astype(np.uint8)

    def decode(self, codes: ArrayLike, scale: float) -> NDArray[np.float64]:
        """The values of codes: integer × scale."""
        given = np.asarray(codes)
        if given.dtype.kind not in "iu" or (given.size and not (given.min() >= 0 and given.max() < 2**self.bits)):
            raise ValueError(f"codes of dtype {given.dtype}: expected integers from 0 to {2**self.bits - 1}")
        unsigned = given.astype(np.int64)
        return np.where(unsigned > self.largest, unsigned - 2**self.bits, unsigned) * _positive(scale)

    def rounded(
        self,
        values: ArrayLike,
        scale: float,
        rounding: Rounding = "nearest-even",
        generator: np.random.Generator | None = None,
    ) -> NDArray[np.float64]:
        """The multiples of `scale` that stand for `values`."""
        return self.decode(self.encode(values, scale, rounding, generator), scale)


def _positive(scale: float) -> float:
    if not 0 < scale < math.inf:
        raise ValueError(f"scale = {scale}: expected a positive number; scale_for(amax) makes one")
    return float(scale)


INT8, INT4 = IntegerFormat("int8", 8), IntegerFormat("int4", 4)
INTEGER_FORMATS = {f.name: f for f in (INT8, INT4)}
