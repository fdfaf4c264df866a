"""Floating-point formats: what a bit pattern means, which pattern a number becomes, and how it is rounded.

FLOAT8_E4M3FN.encode([0.3, 500.0])          # codes 42 and 126
BFLOAT16.rounded(1 + 2**-9)                 # 1.0

A code is an unsigned integer: sign, exponent, mantissa, from the highest bit down. The codes without the sign are in
the order of the magnitudes, beginning at zero. So a carry out of a rounded mantissa correctly increases the exponent,
and a carry out of the largest finite number gives infinity. Encoding needs no special case for either.

Sources: IEEE 754-2019 for float16 and float32; Micikevicius et al. 2022, "FP8 Formats for Deep Learning",
arXiv:2209.05433, for float8; NVIDIA's A100 white paper (2020) for TF32.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Rounding = Literal["nearest-even", "toward-zero", "stochastic"]


def _round_to_integer(
    values: NDArray[np.float64], rounding: Rounding, generator: np.random.Generator | None
) -> NDArray[np.float64]:
    """Round `values` ≥ 0 below 2⁵³, of any shape, to whole numbers.

    "stochastic" rounds up with the probability of the fraction that would be cut off, so the mean over many draws is
    the value itself. Raises ValueError for an unknown rounding, and for a `generator` that is missing or not needed.
    """
    if rounding not in get_args(Rounding):
        raise ValueError(f"rounding = {rounding!r}: expected one of {', '.join(get_args(Rounding))}")
    if (generator is not None) != (rounding == "stochastic"):
        needed = "a numpy Generator, such as np.random.default_rng(0)" if rounding == "stochastic" else "None"
        raise ValueError(f"generator = {generator}: expected {needed} for rounding {rounding!r}")
    if generator is None:
        return np.rint(values) if rounding == "nearest-even" else np.floor(values)
    below = np.floor(values)
    return below + (generator.random(values.shape) < values - below)


_WIDEST_EXPONENT = 8
_WIDEST_MANTISSA = 23
"""The widths of float32: float64, used for all computation, then holds every intermediate number exactly."""


@dataclass(frozen=True)
class FloatFormat:
    """A floating-point format with a sign bit.

    If `has_infinity`, the highest exponent holds infinity (mantissa 0) and NaN (any other), as in IEEE 754. Otherwise
    it holds ordinary numbers, and only the code of all ones is NaN ("fn": finite, with NaN).

    `overflow` says what infinities and numbers beyond `largest` become: "infinity", "saturate" (the largest finite
    number) or "nan". The formats below follow torch 2.13's casts on a CPU: float16, bfloat16 and float8_e5m2 overflow
    to infinity, and float8_e4m3fn saturates. Up to torch 2.11 it became NaN (github.com/pytorch/pytorch/pull/178817).
    That is `dataclasses.replace(FLOAT8_E4M3FN, overflow="nan")`.

    Raises ValueError naming the invalid field.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool = True
    overflow: Literal["infinity", "saturate", "nan"] = "infinity"

    def __post_init__(self) -> None:
        for name, most in (("exponent_bits", _WIDEST_EXPONENT), ("mantissa_bits", _WIDEST_MANTISSA)):
            if not (least := 2 if name == "exponent_bits" else 1) <= getattr(self, name) <= most:
                raise ValueError(f"{name} = {getattr(self, name)}: expected from {least} to {most}")
        if self.overflow not in ("infinity", "saturate", "nan"):
            raise ValueError(f"overflow = {self.overflow!r}: expected 'infinity', 'saturate' or 'nan'")
        if self.overflow == "infinity" and not self.has_infinity:
            raise ValueError(f"overflow = 'infinity': {self.name} has no infinity; expected 'saturate' or 'nan'")

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        """Subtracted from the exponent field of a normal number."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def smallest_exponent(self) -> int:
        """The exponent of the smallest normal number and of the subnormal numbers below it."""
        return 1 - self.bias

    @property
    def storage(self) -> type[np.unsignedinteger]:
        """The narrowest NumPy dtype that holds a code."""
        return np.uint8 if self.bits <= 8 else np.uint16 if self.bits <= 16 else np.uint32

    @property
    def largest_code(self) -> int:
        """The code of the largest finite number."""
        ones = 2 ** (self.bits - 1) - 1
        return ones - 2**self.mantissa_bits if self.has_infinity else ones - 1

    @property
    def nan_code(self) -> int:
        """The NaN that `encode` writes, as GPUs do: all ones but the sign. Every code above infinity decodes to NaN."""
        return 2 ** (self.bits - 1) - 1

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return float(self.decode(self.largest_code))

    @property
    def smallest_normal(self) -> float:
        return 2.0**self.smallest_exponent

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number."""
        return 2.0 ** (self.smallest_exponent - self.mantissa_bits)

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next larger number."""
        return 2.0**-self.mantissa_bits

    def encode(
        self,
        values: ArrayLike,
        rounding: Rounding = "nearest-even",
        generator: np.random.Generator | None = None,
    ) -> NDArray[np.unsignedinteger]:
        """Return the codes of real numbers of any shape, as `storage`, rounded once.

        Rounding "toward-zero" never turns a finite number into infinity. NaN becomes `nan_code`; every sign is kept,
        also of zero and NaN. torch rounds float64 twice, through float32: to compare bits, give both float32. Raises
        TypeError or ValueError for values that float64 cannot hold, and ValueError as `_round_to_integer` does.
        """
        exact = np.asarray(values)
        if exact.dtype.kind not in "fiub" or exact.dtype.itemsize > 8:
            raise TypeError(f"values of dtype {exact.dtype}: expected floating point of at most 64 bits, or integers")
        if exact.dtype.kind in "iu" and exact.size and not -(2**53) <= exact.min() <= exact.max() <= 2**53:
            raise ValueError(f"values from {exact.min()} to {exact.max()}: expected integers of at most 2**53 in size")
        with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
            exact = exact.astype(np.float64)
        finite = np.isfinite(exact)
        magnitude = np.where(finite, np.abs(exact), 0.0)
        exponent = self._exponent(magnitude)
        steps = _round_to_integer(np.ldexp(magnitude, self.mantissa_bits - exponent), rounding, generator)
        codes = ((exponent - self.smallest_exponent).astype(np.int64) << self.mantissa_bits) + steps.astype(np.int64)
        if rounding == "toward-zero":
            codes = np.minimum(codes, self.largest_code)
        codes = np.where((codes > self.largest_code) | np.isinf(exact), self._overflow_code, codes)
        codes = np.where(np.isnan(exact), self.nan_code, codes)
        return (codes | (np.signbit(exact).astype(np.int64) << (self.bits - 1))).astype(self.storage)

    def decode(self, codes: ArrayLike) -> NDArray[np.float64]:
        """Return the exact values of codes of any shape. Raises TypeError unless they are integers, ValueError for one
        that does not fit in `bits` bits."""
        given = np.asarray(codes)
        if given.dtype.kind not in "iu":
            raise TypeError(f"codes of dtype {given.dtype}: expected integers; encode() turns numbers into codes")
        if given.size and not (given.min() >= 0 and given.max() < 2**self.bits):
            wrong = given.min() if given.min() < 0 else given.max()
            raise ValueError(f"code {wrong}: expected 0 to {2**self.bits - 1}, the codes of {self.name}")
        pattern = given.astype(np.int64)
        magnitude = pattern & (2 ** (self.bits - 1) - 1)
        field = magnitude >> self.mantissa_bits
        mantissa = magnitude & (2**self.mantissa_bits - 1)
        significand = mantissa + np.where(field > 0, 2**self.mantissa_bits, 0)
        exponent = np.maximum(field, 1) - self.bias - self.mantissa_bits
        values = np.ldexp(significand.astype(np.float64), exponent)
        values = np.where(magnitude > self.largest_code, np.nan, values)
        if self.has_infinity:
            values = np.where(magnitude == self.largest_code + 1, np.inf, values)
        return np.where(pattern >> (self.bits - 1) == 1, -values, values)

    def rounded(
        self,
        values: ArrayLike,
        rounding: Rounding = "nearest-even",
        generator: np.random.Generator | None = None,
    ) -> NDArray[np.float64]:
        """Round `values` to numbers of this format."""
        return self.decode(self.encode(values, rounding, generator))

    def spacing(self, values: ArrayLike) -> NDArray[np.float64]:
        """Return the distance between neighbouring numbers in the binade of each of the finite `values`."""
        return np.ldexp(1.0, self._exponent(np.abs(np.asarray(values, np.float64))) - self.mantissa_bits)

    def magnitudes(self) -> NDArray[np.float64]:
        """Return all finite numbers ≥ 0, indexed by their code. Raises ValueError for a format of more than 19 bits."""
        if self.bits > 19:
            raise ValueError(f"{self.name} has {self.bits} bits: expected at most 19; decode the codes you need")
        return self.decode(np.arange(self.largest_code + 1))

    def _exponent(self, magnitude: NDArray[np.float64]) -> NDArray[np.int32]:
        """Return ⌊log₂⌋, but at least the exponent of the smallest normal number, whose spacing subnormal numbers
        share."""
        exponent = np.frexp(magnitude)[1] - 1
        return np.where(magnitude > 0, np.maximum(exponent, self.smallest_exponent), self.smallest_exponent)

    @property
    def _overflow_code(self) -> int:
        return {"infinity": self.largest_code + 1, "saturate": self.largest_code, "nan": self.nan_code}[self.overflow]


FLOAT32 = FloatFormat("float32", 8, 23)
TF32 = FloatFormat("tf32", 8, 10)
FLOAT16 = FloatFormat("float16", 5, 10)
BFLOAT16 = FloatFormat("bfloat16", 8, 7)
FLOAT8_E4M3FN = FloatFormat("float8_e4m3fn", 4, 3, has_infinity=False, overflow="saturate")
FLOAT8_E5M2 = FloatFormat("float8_e5m2", 5, 2)
FLOAT_FORMATS = {f.name: f for f in (FLOAT32, TF32, FLOAT16, BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2)}


__all__ = [
    "BFLOAT16", "FLOAT16", "FLOAT32", "FLOAT8_E4M3FN", "FLOAT8_E5M2", "FLOAT_FORMATS", "FloatFormat", "Rounding",
    "TF32",
]  # fmt: skip
