# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
#   threeloops:
#     title: How few bits can you train with?
#     minutes: 170
#     withholds: [threeloops.inner.precision, threeloops.inner.interpreter.formats]
#     edition: 2
# ---

# %% [markdown]
# # How few bits can you train with?
#
# ![The bits of five number formats, from 32 down to 8: sign, exponent and mantissa](attachment:opening.png)
#
# With half the bits, a number takes half the time to move through memory and links, and tensor cores multiply at twice the
# rate: NVIDIA's Hopper white paper (v1.04, 2023) gives an H100 SXM 495 TFLOP/s for TF32, 989 for bfloat16 and 1,979 for FP8,
# without sparsity. What goes wrong when you train with fewer bits, and what keeps the training right?
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from threeloops.lab import (
    animate,
    audit,
    calibration,
    check,
    debrief,
    explore,
    hint,
    inout,
    myth,
    predict,
    reveal,
    show,
    term,
)
from threeloops.lab.checking.wall import arguments_after
from threeloops.lab.drawings.inner import formats
from threeloops.lab.drawings.inner.formats import RECIPES, stored

torch.set_num_threads(1)  # the tensors are small: a second thread would spend its time waiting


@dataclass(frozen=True)
class Format:
    """A number format: 1 sign bit, then the exponent field, then the mantissa."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    infinities: bool = True  # the highest exponent field holds infinity and NaN; otherwise all ones is the only NaN

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent_bits - 1) - 1


FLOAT32 = Format("float32", 8, 23)
FLOAT16 = Format("float16", 5, 10)
BFLOAT16 = Format("bfloat16", 8, 7)
E5M2 = Format("float8_e5m2", 5, 2)
E4M3FN = Format("float8_e4m3fn", 4, 3, infinities=False)


@dataclass(frozen=True)
class Scaler:
    """All that a dynamic loss scaler remembers."""

    scale: float  # a float32 number
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    clean: int = 0  # steps without overflow in a row, since the scale last had its chance to grow


@dataclass(frozen=True)
class Masters:
    """What an optimizer keeps for one 16-bit weight tensor: float32, of the same shape."""

    weights: torch.Tensor
    momentum: torch.Tensor


@dataclass(frozen=True)
class Delayed:
    """The scale for the next tensor, and the amaxes behind it, oldest first."""

    scale: float = 1.0
    history: tuple[float, ...] = ()


LARGEST_SCALE = float(np.finfo(np.float32).max)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def hexadecimal(code, format):
    return f"0x{int(code):0{-(-format.bits // 4)}X}"


def first_cause(got, slips):
    """The cause whose value was given, if any: `slips` maps causes to values. For numbers, tensors and NaN."""

    def same(a, b):
        a, b = (np.asarray(x.detach().double() if torch.is_tensor(x) else x) for x in (a, b))
        return (
            a.shape == b.shape and a.dtype.kind in "fiub" and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
        )

    return next((cause for cause, value in slips.items() if same(got, value)), "")


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
show.figure(
    formats.draw_bits((FLOAT32, FLOAT16, BFLOAT16, E4M3FN, E5M2), "Can these train a network?"),
    "the bits of float32, float16, bfloat16 and two 8-bit formats",
)

# %% [markdown]
# ## 1 · What a code means
#
# Every format divides its bits. The **exponent** gives range: how small or large a number can be. The **mantissa** gives
# precision: how close a number is to its neighbours. A code holds, from the highest bit down, one bit for the sign, the
# exponent field E of e bits and the mantissa M of m bits. The bias is b = 2^(e − 1) − 1, and the code means:
#
# | exponent field | value |
# |---|---|
# | E > 0: **normal** | ± (1 + M / 2^m) · 2^(E − b) |
# | E = 0: **subnormal** | ± (M / 2^m) · 2^(1 − b) |
# | all ones, `infinities=True` | ± infinity if M = 0, otherwise NaN |
# | all ones, `infinities=False` | normal, but if M is all ones too, NaN |
#
# The last row is float8_e4m3fn: with so few codes, it cannot spare eight of each sign for infinity and NaN.
#
# *Worked example.* float16 has e = 5, m = 10, b = 15. 0xC0B1 is 1 10000 0010110001 in binary: negative, E = 16, M = 177,
# so −(1 + 177/1024) · 2^(16 − 15) = −2.345703125. In float8_e4m3fn (e = 4, m = 3, b = 7), 0x07 is 0 0000 111: a subnormal
# number, 7/8 · 2^(1 − 7) = 0.013671875.
#
# ### Exercise 1 (12 points)
#
# `decode(codes, format) -> np.ndarray` returns the exact values of codes as float64, in the shape of `codes`.
#
# - `codes` is an array of any shape and any integer dtype, such as `uint8`. Its values fit into int64. It is not changed.
# - `format` has `exponent_bits`, `mantissa_bits`, `infinities`, and the properties `bits` and `bias`.
# - Zero has a sign too: the code with only the sign bit set is −0.0.
# - If a code is negative or has more bits than the format, raise a `ValueError` that contains `code = ` and the code in
#   decimal.


# %% nbgrader={"grade": false, "grade_id": "decode", "locked": false, "schema_version": 3, "solution": true, "task": false}
def decode(codes: np.ndarray, format: Format) -> np.ndarray:
    """The exact values of codes, float64."""
    ### BEGIN SOLUTION
    m, ones = format.mantissa_bits, 2 ** (format.bits - 1) - 1
    codes = np.asarray(codes)
    for code in codes[(codes < 0) | (codes > 2 * ones + 1)]:
        raise ValueError(f"code = {code}: expected 0 to {2 * ones + 1}")
    codes = codes.astype(np.int64)
    magnitude = codes & ones
    field, mantissa = magnitude >> m, magnitude & (2**m - 1)
    significand = np.where(field > 0, 2**m, 0) + mantissa
    values = np.ldexp(significand.astype(np.float64), np.maximum(field, 1) - format.bias - m)
    if format.infinities:
        values = np.where(field == 2**format.exponent_bits - 1, np.where(mantissa == 0, np.inf, np.nan), values)
    else:
        values = np.where(magnitude == ones, np.nan, values)
    return np.where(codes > ones, -values, values)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "decode_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("decode", "the values of codes", part="values", hidden="other formats and all their codes"):

    def decoded(format, code, expected, slips=()):
        what = f"decode of {hexadecimal(code, format)} in {format.name}"
        got = decode(np.array([code]), format)
        check.shape(got, (1,), what=what)
        check.dtype(got, np.float64, what=what)
        value = float(got[0])
        if math.isnan(expected):
            check.true(math.isnan(value), f"{what} is {value!r}: expected NaN")
        elif expected == 0:
            check.true(value == 0, f"{what} is {value!r}: expected {expected!r}")
            check.true(
                math.copysign(1, value) == math.copysign(1, expected), f"{what} is {value!r}: expected {expected!r}"
            )
        else:
            check.close(value, expected, rtol=0, what=what, hint=first_cause(value, dict(slips)))

    decoded(FLOAT16, 0x3C00, 1.0, {"the bias has not been subtracted": 2.0**15})
    decoded(FLOAT16, 0x7BFF, 65504.0)
    decoded(BFLOAT16, 0x4049, 3.140625, {"these are float16's 5 exponent and 10 mantissa bits": 2.142578125})
    lead = "this value has a leading 1: a subnormal number (E = 0) has none"
    decoded(FLOAT16, 0x0001, 2.0**-24, {lead: (1 + 2.0**-10) * 2.0**-14, "its exponent is 1 − b, not −b": 2.0**-25})
    decoded(FLOAT16, 0x0400, 2.0**-14, {"the smallest normal number (E = 1) has a leading 1": 0.0})
    decoded(E4M3FN, 0x07, 7 * 2.0**-9, {lead: (1 + 7 / 8) * 2.0**-6, "its exponent is 1 − b, not −b": 7 * 2.0**-10})
    decoded(FLOAT16, 0xC0B1, -2.345703125, {"the highest bit is the sign": 2.345703125})
    decoded(E5M2, 0xFB, -57344.0, {"the highest bit is the sign": 57344.0})
    top = "float8_e4m3fn's highest exponent field holds ordinary numbers"
    decoded(E4M3FN, 0x7E, 448.0, {top: math.inf, top + " ": math.nan})
    decoded(E4M3FN, 0x78, 256.0, {top: math.inf, top + " ": math.nan})
    decoded(FLOAT16, 0x0000, 0.0)
    decoded(FLOAT16, 0x8000, -0.0)
    decoded(
        FLOAT16,
        0x7C00,
        math.inf,
        {"E all ones and M = 0 is infinity": math.nan, "E all ones is no normal number here": 65536.0},
    )
    decoded(FLOAT16, 0xFC00, -math.inf, {"infinity has a sign": math.inf})
    decoded(FLOAT16, 0x7C01, math.nan)
    decoded(E4M3FN, 0x7F, math.nan)
    decoded(E4M3FN, 0xFF, math.nan)
    for format, code, dtype, expected in (
        (E5M2, 0xC0, np.uint8, -2.0),
        (E4M3FN, 0x10, np.uint8, 2.0**-5),
        (FLOAT32, 0xC0000000, np.uint32, -2.0),
    ):
        decoded(format, code, expected)
        got, name = decode(np.array([code], dtype=dtype), format), np.dtype(dtype).name
        check.dtype(got, np.float64, what=f"decode of {name} codes in {format.name}")
        what = f"decode of {hexadecimal(code, format)} in {format.name}, given as {name} (as int64 it was right)"
        check.close(float(got[0]), expected, rtol=0, what=what, hint="convert the codes to int64 first")
    check.close(
        decode(np.array([[0x3C00, 0x4000], [0xC000, 0x0000]]), FLOAT16),
        [[1.0, 2.0], [-2.0, 0.0]],
        rtol=0,
        what="decode of a (2, 2) array in float16",
    )
    given = np.array([0xC000, 0x8000])
    decode(inout(given), FLOAT16)
    check.equal(given.tolist(), [0xC000, 0x8000], what="the codes that decode was given, after it")
    ### BEGIN HIDDEN TESTS
    UNUSUAL = (Format("e3m4", 3, 4), Format("e2m3fn", 2, 3, False), Format("e2m1fn", 2, 1, False), Format("e6m9", 6, 9))
    for format in (FLOAT16, BFLOAT16, E5M2, E4M3FN, *UNUSUAL):
        fields, b, count = 2**format.exponent_bits, 2 ** (format.exponent_bits - 1) - 1, 2**format.mantissa_bits
        rungs = [(min(f, 1) + m / count) * 2.0 ** (max(f, 1) - b) for f in range(fields) for m in range(count)]
        finite = np.array(rungs[:-count] if format.infinities else rungs[:-1])
        codes, sign = np.arange(len(finite)), 2 ** (format.bits - 1)
        check.close(decode(codes, format), finite, rtol=0, what=f"decode of all finite codes of {format.name}")
        got = decode((codes + sign).reshape(1, -1), format)
        check.close(got, -finite.reshape(1, -1), rtol=0, what=f"decode of all negative codes of {format.name}")
        check.true(
            bool(np.signbit(got).all()), f"decode({hexadecimal(sign, format)}) in {format.name} is 0.0: expected -0.0"
        )
        rest = decode(np.arange(len(finite) + format.infinities, sign), format)
        check.true(bool(np.isnan(rest).all()), f"decode of a NaN code of {format.name} is not NaN")
    check.shape(decode(np.zeros((2, 0, 3), np.uint16), E5M2), (2, 0, 3), what="decode of an empty array")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "decode_test_errors", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("decode", "codes that do not exist", part="errors", hidden="other formats"):
    check.raises(ValueError, decode, np.array([3, 256]), E5M2, names="code = 256")
    check.raises(ValueError, decode, np.array([5, -1]), FLOAT16, names="code = -1")
    check.accepts(decode, np.array([0, 255]), E5M2)
    ### BEGIN HIDDEN TESTS
    check.raises(ValueError, decode, np.array([[0, 70000]]), BFLOAT16, names="code = 70000")
    check.raises(ValueError, decode, np.array([512]), Format("e5m3", 5, 3), names="code = 512")
    check.accepts(decode, np.array([511]), Format("e5m3", 5, 3))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "decode",
    "Convert the codes to int64, and take the three fields out with shifts (`>>`) and masks (`&`). A mask of m ones keeps M.",
    "Both rows of the table are an integer times a power of two, and they share one exponent if E = 0 counts as 1. `np.ldexp(integer, exponent)` is exact.",
    "`np.where` puts infinities and NaN in their places. Let the sign come last, and negate: 0 minus a zero is not −0.0.",
)
debrief(
    "decode",
    """Subnormal numbers share their exponent with the smallest normal ones. Therefore the spacing next to zero stays the
    same, and no gap opens between 0 and the smallest normal number. The price is precision: each leading zero of the
    mantissa is one significant bit less.

    Read without its sign, a code counts the magnitudes in ascending order: code + 1 is always the next larger number, even
    across powers of two. The next exercise uses this.""",
    parts=("values", "errors"),
)
predict("bf16_one", "How far above 1 is the next bfloat16 number?")
myth("prec-1")

from threeloops.inner.precision.formats import FLOAT_FORMATS

BF16, FP16, FP32 = (FLOAT_FORMATS[name] for name in ("bfloat16", "float16", "float32"))


def draw_number_line(format, power_of_two, fraction):
    """The numbers of a format around fraction · 2^power_of_two, and where rounding takes that number."""
    return formats.draw_number_line(FLOAT_FORMATS[format], fraction * 2.0**power_of_two)


explore(
    draw_number_line,
    format=["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float32"],
    power_of_two=(-30, 20, 1, 8),
    fraction=(1.0, 2.0, 0.001, 1.004),
)
show.against_prediction("bf16_one", BF16.epsilon, source="model")
audit(
    "prec-1",
    FP16.epsilon / FP32.epsilon,
    "× as far from 1 to the next number",
    "model",
    "corrected",
    how="2⁻¹⁰ against 2⁻²³: float16 is coarser everywhere, near 1 by a factor of 8,192. Every float16 number is also a float32 number",
)

# %% [markdown]
# ## 2 · Rounding
#
# The explorer above shows the numbers of a format around a value that you choose. The diamond is that value, and the arrow
# shows where rounding takes it. Find the first whole number that bfloat16 lacks, and what becomes of 0.001 in float8_e4m3fn.
#
# *Worked example.* 0.3 = 1.2 · 2⁻² in float8_e4m3fn. Numbers with the exponent −2 lie 2⁻² / 2³ = 1/32 apart, and 0.3 · 32 =
# 9.6 rounds to 10, so the nearest number is 10/32 = 0.3125 = (1 + 2/8) · 2⁻². That is E = −2 + 7 = 5 and M = 2: 0 0101 010, or
# 0x2A. A value half-way between two numbers, such as 9.5/32, goes to the one with the even code.
#
# ### Exercise 2 (20 points)
#
# `encode(values, format) -> np.ndarray` returns the codes of float64 `values` as int64, in the same shape.
#
# - **Nearest:** a value becomes the nearest number; a tie goes to the even code. Round *once*, from float64.
# - **Overflow:** round as if the exponent had no limit. A result above the largest finite number becomes infinity
#   (`infinities=True`), or the largest finite number (`infinities=False`). The same holds for an infinite value.
# - **Signs** are kept, including that of −0.0. NaN of either sign becomes the code with sign bit 0 and ones elsewhere.
#
# Formats have 2 to 8 exponent bits and 1 to 23 mantissa bits. Do not change `values`.


# %% nbgrader={"grade": false, "grade_id": "encode", "locked": false, "schema_version": 3, "solution": true, "task": false}
def encode(values: np.ndarray, format: Format) -> np.ndarray:
    """The codes of the nearest numbers, ties to even, int64."""
    ### BEGIN SOLUTION
    m, ones = format.mantissa_bits, 2 ** (format.bits - 1) - 1
    magnitude = np.where(np.isfinite(values), np.abs(values), 0.0)
    smallest = 1 - format.bias
    exponent = np.where(magnitude > 0, np.maximum(np.frexp(magnitude)[1] - 1, smallest), smallest)
    steps = np.rint(np.ldexp(magnitude, m - exponent)).astype(np.int64)
    codes = (exponent - smallest).astype(np.int64) * 2**m + steps  # a carry runs into the exponent, as it should
    largest = ones - 2**m if format.infinities else ones - 1
    codes = np.where((codes > largest) | np.isinf(values), largest + format.infinities, codes)
    codes = codes + np.where(np.signbit(values), ones + 1, 0)
    return np.where(np.isnan(values), ones, codes)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "encode_test_nearest", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("encode", "the nearest number", part="nearest", hidden="other formats and values"):

    def encoded(format, value, expected, slips=()):
        what = f"encode of {value!r} in {format.name}"
        got = encode(np.array([value]), format)
        check.shape(got, (1,), what=what)
        check.dtype(got, np.int64, what=what)
        code = int(got[0])
        cause = {value: key for key, value in dict(slips).items()}.get(code, "")
        check.true(
            code == expected,
            f"{what} is {hexadecimal(code, format)}: expected {hexadecimal(expected, format)}"
            + (f"; {cause}" if cause else ""),
        )

    encoded(FLOAT16, 0.0, 0x0000, {"frexp(0) gives the exponent 0: a zero is subnormal, its exponent is 1 − b": 0x3400})
    encoded(FLOAT16, 1.0, 0x3C00)
    encoded(BFLOAT16, 1.0078125, 0x3F81)
    encoded(E4M3FN, 0.3, 0x2A, {"the rest was cut off: round to the nearest": 0x29})
    encoded(FLOAT16, 2.0**-24, 0x0001, {"the smallest subnormal number is not zero": 0x0000})
    encoded(E4M3FN, 7 * 2.0**-9, 0x07)
    encoded(FLOAT16, 1e-9, 0x0000)
    encoded(E4M3FN, 448.0, 0x7E, {"float8_e4m3fn's highest exponent field holds ordinary numbers": 0x77})
    encoded(E4M3FN, 1.97, 0x40, {"the mantissa rounds up to 2^m: carry into the exponent": 0x38})
    encoded(BFLOAT16, 1 + 2.0**-8, 0x3F80, {"half-way the even code wins, here the lower one": 0x3F81})
    encoded(BFLOAT16, 1 + 3 * 2.0**-8, 0x3F82, {"half-way the even code wins, here the upper one": 0x3F81})
    twice = "rounded twice: by way of float32 or float16 this value lands half-way first"
    encoded(BFLOAT16, 1 + 2.0**-8 + 2.0**-40, 0x3F81, {twice: 0x3F80})
    encoded(E4M3FN, 1 + 2.0**-4 + 2.0**-40, 0x39, {twice: 0x38})
    encoded(E4M3FN, 4.5 * 2.0**-9, 0x04, {"half-way the even code wins, between subnormal numbers too": 0x05})
    got = encode(np.array([[1.0, 2.0], [0.5, 0.0]]), FLOAT16)
    check.equal(got, np.array([[0x3C00, 0x4000], [0x3800, 0]]), what="encode of a (2, 2) array in float16")
    check.shape(encode(np.array(1.5), FLOAT16), (), what="the codes of an array without dimensions")
    ### BEGIN HIDDEN TESTS
    from bisect import bisect_left
    from fractions import Fraction

    def ladder(format):
        """Every finite magnitude, from the definition."""
        fields = 2**format.exponent_bits - (1 if format.infinities else 0)
        b, count = 2 ** (format.exponent_bits - 1) - 1, 2**format.mantissa_bits
        rungs = [(min(f, 1) + m / count) * 2.0 ** (max(f, 1) - b) for f in range(fields) for m in range(count)]
        return rungs if format.infinities else rungs[:-1]

    def nearest(value, rungs):
        above = bisect_left(rungs, value)
        if rungs[above] == value:
            return above
        up, down = Fraction(rungs[above]) - Fraction(value), Fraction(value) - Fraction(rungs[above - 1])
        return above if up < down or (up == down and above % 2 == 0) else above - 1

    UNUSUAL = (Format("e3m4", 3, 4), Format("e2m3fn", 2, 3, False), Format("e2m1fn", 2, 1, False), Format("e6m9", 6, 9))
    for format in (FLOAT16, BFLOAT16, E5M2, E4M3FN, *UNUSUAL):
        rungs, rng = ladder(format), check.rng(format.mantissa_bits)
        check.equal(
            encode(np.array(rungs), format),
            np.arange(len(rungs)),
            what=f"encode of all finite numbers of {format.name}",
        )
        picked = rng.integers(0, len(rungs) - 1, 60)
        middle = np.array([(rungs[i] + rungs[i + 1]) / 2 for i in picked])
        spread = rng.uniform(0, 1, 60) * rungs[-1] * 2.0 ** -rng.integers(0, 12, 60).astype(float)
        values = np.concatenate([middle, np.nextafter(middle, 1e300), np.nextafter(middle, 0), spread])
        expected = np.array([nearest(float(v), rungs) for v in values])
        got = encode(values, format)
        check.equal(got, expected, what=f"encode of {len(values)} values in {format.name}")
    rng = check.rng(7)
    single = np.abs(rng.normal(size=200) * 2.0 ** rng.integers(-140, 120, 200)).astype(np.float32)
    check.equal(
        encode(single.astype(np.float64), FLOAT32),
        single.view(np.uint32).astype(np.int64),
        what="encode of float32 numbers",
    )
    check.shape(encode(np.zeros((2, 0, 3)), E5M2), (2, 0, 3), what="encode of an empty array")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "encode_test_overflow", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("encode", "numbers that are too large", part="overflow", hidden="other formats"):

    def overflowed(format, value, expected, slips=()):
        code = int(encode(np.array([value]), format)[0])
        cause = {slip: key for key, slip in dict(slips).items()}.get(code, "")
        check.true(
            code == expected,
            f"encode of {value!r} in {format.name} is {hexadecimal(code, format)}: expected {hexadecimal(expected, format)}"
            + (f"; {cause}" if cause else ""),
        )

    overflowed(FLOAT16, 65504.0, 0x7BFF)
    overflowed(FLOAT16, 65512.0, 0x7BFF, {"round first: this rounds to 65504, which is finite": 0x7C00})
    overflowed(FLOAT16, 70000.0, 0x7C00, {"with infinities=True what is too large becomes infinity": 0x7BFF})
    overflowed(
        FLOAT16, 65520.0, 0x7C00, {"half-way between 65504 and 65536 the even code wins, that of infinity": 0x7BFF}
    )
    overflowed(FLOAT16, math.inf, 0x7C00)
    overflowed(FLOAT32, 1e300, 0x7F800000)
    overflowed(E4M3FN, 450.0, 0x7E)
    overflowed(E4M3FN, 1e9, 0x7E, {"without infinities what is too large becomes the largest finite number": 0x7F})
    overflowed(E4M3FN, math.inf, 0x7E, {"without infinities, infinity becomes the largest finite number": 0x7F})
    overflowed(E5M2, 61440.0, 0x7C, {"half-way between 57344 and 65536 the even code wins, that of infinity": 0x7B})
    ### BEGIN HIDDEN TESTS
    UNUSUAL = (Format("e3m4", 3, 4), Format("e2m3fn", 2, 3, False), Format("e2m1fn", 2, 1, False), Format("e6m9", 6, 9))
    for format in (FLOAT16, BFLOAT16, E5M2, E4M3FN, *UNUSUAL):
        m, ones = format.mantissa_bits, 2 ** (format.bits - 1) - 1
        largest = ones - 2**m if format.infinities else ones - 1
        field, rest = largest >> m, largest & (2**m - 1)
        unit = 2.0 ** (field - format.bias - m)
        top, beyond = (2**m + rest) * unit, largest + format.infinities
        odd = largest % 2 == 1  # then the tie goes up
        for share, code in (
            (0.25, largest),
            (0.499, largest),
            (0.5, beyond if odd else largest),
            (0.501, beyond),
            (2.0, beyond),
        ):
            overflowed(format, float(top + share * unit), code)
        overflowed(format, 1e300, beyond)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "encode_test_signs", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("encode", "signs and NaN", part="signs", hidden="other formats"):

    def signed(format, value, expected, cause=""):
        code = int(encode(np.array([value]), format)[0])
        check.true(
            code == expected,
            f"encode of {value!r} in {format.name} is {hexadecimal(code, format)}: expected {hexadecimal(expected, format)}"
            + (f"; {cause}" if cause and code == 0 else ""),
        )

    signed(FLOAT16, 1.5, 0x3E00)
    signed(FLOAT16, -1.5, 0xBE00)
    given, before = np.array([-1.5, math.nan, -math.inf]), np.array([-1.5, math.nan, -math.inf])
    encode(inout(given), FLOAT16)
    check.true(
        np.array_equal(given, before, equal_nan=True),
        f"the values that encode was given are {given.tolist()} after it: expected {before.tolist()}, as before",
    )
    signed(E5M2, -57344.0, 0xFB)
    signed(FLOAT16, 0.0, 0x0000)
    signed(FLOAT16, -0.0, 0x8000, "−0.0 < 0 is False: np.signbit tells them apart")
    signed(FLOAT16, -1e-9, 0x8000, "it rounds to −0.0: the sign is that of the value")
    signed(BFLOAT16, -(1 + 2.0**-8), 0xBF80)
    signed(FLOAT16, -math.inf, 0xFC00)
    signed(E4M3FN, -math.inf, 0xFE)
    signed(FLOAT16, math.nan, 0x7FFF)
    signed(E4M3FN, math.nan, 0x7F)
    for format, code in ((E4M3FN, 0x7F), (FLOAT16, 0x7FFF)):
        got = int(encode(-np.array([math.nan]), format)[0])
        check.true(
            got == code,
            f"encode of NaN with a sign in {format.name} is {hexadecimal(got, format)}: expected {hexadecimal(code, format)}",
        )
    ### BEGIN HIDDEN TESTS
    for format in (BFLOAT16, E5M2, Format("e3m4", 3, 4), Format("e2m1fn", 2, 1, False)):
        values = np.concatenate(
            [np.abs(check.rng(1).normal(size=50)) * 2.0 ** check.rng(2).integers(-9, 9, 50), [0.0, 1e300]]
        )
        plus, minus = encode(values, format), encode(-values, format)
        check.equal(
            minus - plus, np.full(52, 2 ** (format.bits - 1)), what=f"codes of −x minus codes of x in {format.name}"
        )
        for nan in (math.nan, -math.nan):
            signed(format, nan, 2 ** (format.bits - 1) - 1)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "encode",
    "Ask how far apart the format's numbers lie around |x|: 2^(k − m), where k is the exponent of x. `np.frexp(x)[1] - 1` is k, but it must not be below 1 − b.",
    "For x = 0, `np.frexp` gives 0, hence k = −1, which is too large: use 1 − b there. Then divide |x| by the spacing and round: `np.rint` rounds ties to even.",
    "Codes count the numbers. At the smallest exponent, k = 1 − b, the integer is the code itself. How many codes does each exponent above it add? Then a carry into the next power of two needs no special case.",
)
debrief(
    "encode",
    """Because codes count magnitudes, rounding is arithmetic on integers. A mantissa that rounds up to 2^m adds one to the
    exponent field, and from the largest finite number the same carry leads to the code of infinity.

    Rounding twice can pick the wrong neighbour: the first rounding may land exactly half-way, and the tie rule of the second
    then decides without knowing on which side the value was. A hardware cast from float32 rounds once.""",
    parts=("nearest", "overflow", "signs"),
)
term("bfloat16")
term("subnormal number")

# %% [markdown]
# ## 3 · Gradients that become zero
#
# Most weights and activations are not far from 1, but gradients can be very small: averaging over a batch divides each
# sample's gradient by the batch size, and layers on the way back multiply it by small numbers. The next cell trains a small
# convolutional network on images of handwritten digits, in float32 (about ten seconds). What would float16 do to its gradients?

# %% tags=["demo"] jupyter={"source_hidden": true}
from torch import nn
from torch.nn import functional

with np.load("data/digits.npz") as arrays:
    IMAGES = torch.from_numpy(arrays["images"]).float()[:, None] / 16
    LABELS = torch.from_numpy(arrays["labels"]).long()
TRAINING = torch.from_numpy(np.random.default_rng(0).permutation(len(LABELS)))[:1437]


def digits_network():
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1), nn.Linear(512, 64), nn.Linear(64, 10))
    first, second, hidden, output = layers
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), hidden, nn.ReLU(), output)


def loss_of(network, batch):
    return functional.cross_entropy(network(IMAGES[batch]), LABELS[batch])


def gradients_of(network):
    """The magnitudes of all nonzero gradients of activations and weights for one batch, in one vector."""
    kept = []
    hooks = [
        layer.register_forward_hook(lambda layer, inputs, output: (output.retain_grad(), kept.append(output))[0])
        for layer in network
        if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    network.zero_grad()
    loss_of(network, TRAINING[:64]).backward()
    for hook in hooks:
        hook.remove()
    found = [x.grad for x in kept] + [p.grad for p in network.parameters()]
    every = torch.cat([g.reshape(-1) for g in found]).abs().double().numpy()
    return every[every > 0]


network, shuffle, EPOCHS = digits_network(), np.random.default_rng(1), 12
EARLY, optimizer = gradients_of(network), torch.optim.Adam(network.parameters())
for epoch in range(EPOCHS):
    optimizer.param_groups[0]["lr"] = 1e-3 * (1 - epoch / EPOCHS)
    for batch in torch.from_numpy(shuffle.permutation(TRAINING)).split(64)[:-1]:
        optimizer.zero_grad()
        loss_of(network, batch).backward()
        optimizer.step()
LATE = gradients_of(network)
E4, E5 = FLOAT_FORMATS["float8_e4m3fn"], FLOAT_FORMATS["float8_e5m2"]
show.figure(
    formats.draw_gradients(
        {"before training": EARLY, f"after {EPOCHS} epochs": LATE},
        {"float16's\nsmallest number\n6.0·10⁻⁸": FP16.smallest_subnormal},
    )
)
predict("fp16_zero", "What percentage of the gradients after training (blue) becomes zero in float16?", unit="%")
myth("prec-2")
myth("prec-8")
myth("prec-3")
SCALES = np.arange(-8, 41)


def lost_at(format, power):
    """The percentages of gradients that become zero, and that overflow, when scaled by 2^power and rounded."""
    scaled = LATE * 2.0**power
    result = format.rounded(scaled)
    beyond = ~np.isfinite(result) | (scaled > format.largest * (1 + format.epsilon / 2))
    return 100 * (result == 0).mean(), 100 * beyond.mean()


SHARES = {f.name: np.array([lost_at(f, p) for p in SCALES]) for f in (FP16, BF16, E5, E4)}
unscaled = int(np.flatnonzero(SCALES == 0)[0])
fp16_zero, bf16_zero = (SHARES[name][unscaled, 0] for name in ("float16", "bfloat16"))
show.against_prediction("fp16_zero", round(fp16_zero, 2), unit="%", source="measured here, emulated")
usable = {name: (shares[:, 0] <= 1) & (shares[:, 1] == 0) for name, shares in SHARES.items()}
with reveal("fp16_zero"):
    show.figure(formats.draw_windows(SCALES, SHARES, usable))

    def window(name):
        fits = SCALES[usable[name]]
        tried = "all that were tried, " if len(fits) == len(SCALES) else ""
        return f"{tried}2^{fits[0]} to 2^{fits[-1]}" if len(fits) else "none"

    show.table([[name, window(name)] for name in SHARES], ["format", "scales with at most 1% zero and no overflow"])
halves = FP16.rounded(np.array([1e-5, FP16.smallest_subnormal / 2]))
audit(
    "prec-2",
    FP16.smallest_subnormal / 2,
    "and below become zero",
    "CPU",
    "corrected",
    how=f"1e-5 is stored as {halves[0]:.4g}, a subnormal number: full precision ends at {FP16.smallest_normal:.3g}, and the smallest number is {FP16.smallest_subnormal:.3g}. Of this network's gradients {fp16_zero:.2g}% vanish",
)
audit(
    "prec-8",
    int(np.isnan(FP16.rounded(LATE)).sum()),
    f"NaN among {len(LATE):,} gradients in float16, {int((FP16.rounded(LATE) == 0).sum()):,} of them zero",
    "CPU",
    "corrected",
    how="underflow gives zero. Overflow gives infinity, and that leads to NaN, by infinity − infinity or 0 · infinity",
)
errors = np.abs(BF16.rounded(LATE) / LATE - 1)
audit(
    "prec-3",
    round(bf16_zero, 6),
    "% of gradients vanish in bfloat16, unscaled",
    "CPU",
    "holds",
    how=f"on the gradients of a small network. With bfloat16 a scaler can do no more than skip a step whose gradient is not finite. The price of bfloat16 is precision: the mean relative error of these gradients is {100 * errors.mean():.2g}%. It matters more in the weights (section 4)",
)

# %% [markdown]
# float16 has a **window** of scales that work: multiply the loss by one of them before the backward pass, and divide the
# gradients by it afterwards. bfloat16 needs no scale. float8_e4m3fn has no window at all, so one scale for all tensors cannot
# work there.
#
# Since nobody knows the window beforehand, a **loss scaler** searches for it: it raises the scale every now and then, and when
# a gradient is infinite or NaN, it skips the step and lowers the scale.
#
# *Worked example.* The scale is 4, and the gradients of the scaled loss are 4 and −8: the true ones are 1 and −2. With a
# learning rate of 0.5, parameters (1, 2) become (0.5, 3). If one of the gradients were infinite, no parameter would move, and
# with a `backoff` of 0.5 the scale would become 2.
#
# ### Exercise 3 (20 points)
#
# `scaled_step(scaler, parameters, gradients, learning_rate) -> (Scaler, list[Tensor], bool)` returns the next scaler, the new
# parameters, and whether the step was skipped.
#
# - `gradients` of the scaled loss are float32 or float16, one per float32 parameter; tensors may be empty. If any element is
#   infinite or NaN, the step is skipped: all parameters stay.
# - Otherwise p becomes p − learning_rate · g, where g is the gradient in float32 times the float32 number nearest to
#   1 / scale. Do not change the tensors you were given.
# - A new scale is a `float`, rounded to float32.
#
# | step | `scale` | `clean` |
# |---|---|---|
# | skipped | times `backoff` | 0 |
# | the `interval`-th clean one in a row | times `growth` if float32 can hold that, otherwise unchanged | 0 |
# | other clean ones | unchanged | clean + 1 |
#
# Results equal those of `torch.amp.GradScaler` with SGD bit for bit. Learning rates are powers of two.


# %% nbgrader={"grade": false, "grade_id": "scaled_step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def scaled_step(
    scaler: Scaler, parameters: list[torch.Tensor], gradients: list[torch.Tensor], learning_rate: float
) -> tuple[Scaler, list[torch.Tensor], bool]:
    """One step of SGD on the gradients of a scaled loss, or none."""
    ### BEGIN SOLUTION
    if not all(bool(torch.isfinite(g).all()) for g in gradients):
        return replace(scaler, scale=float(np.float32(scaler.scale * scaler.backoff)), clean=0), list(parameters), True
    inverse = float(np.float32(1 / scaler.scale))
    new = [p - learning_rate * (g.float() * inverse) for p, g in zip(parameters, gradients, strict=True)]
    if scaler.clean + 1 < scaler.interval:
        return replace(scaler, clean=scaler.clean + 1), new, False
    with np.errstate(over="ignore"):
        grown = float(np.float32(scaler.scale * scaler.growth))
    return replace(scaler, scale=grown if math.isfinite(grown) else scaler.scale, clean=0), new, False
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "scaled_step_test_step", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("scaled_step", "parameters after a step", part="step", hidden="many steps compared with torch's"):

    def stepped(parameters, gradients, scale, rate):
        """The new parameters, after a look at their kind and at the tensors that were given."""
        before = [[t.clone() for t in tensors] for tensors in (parameters, gradients)]
        result = scaled_step(Scaler(scale), inout(parameters), inout(gradients), rate)
        check.equal(len(result), 3, what="results of scaled_step")
        for name, tensors, old in (("parameters", parameters, before[0]), ("gradients", gradients, before[1])):
            for now, then in zip(tensors, old, strict=True):
                check.equal(now.tolist(), then.tolist(), what=f"the {name} that scaled_step was given, after it")
        check.equal(len(result[1]), len(parameters), what="parameters that scaled_step returns")
        for new, old in zip(result[1], parameters, strict=True):
            check.shape(new, tuple(old.shape), what="a new parameter")
            check.dtype(new, torch.float32, what="a new parameter")
        return result[1]

    def one(parameter, gradient, scale, rate, expected, slips):
        got = stepped([torch.tensor([parameter])], [gradient], scale, rate)[0].item()
        kind = str(gradient.dtype).removeprefix("torch.")
        what = f"{parameter} after a step of {rate:g} with the {kind} gradient {gradient.item():g} at scale {scale:g}"
        check.close(got, expected, rtol=0, what=what, hint=first_cause(got, slips))

    one(
        1.0,
        torch.tensor([4.0]),
        4.0,
        0.5,
        0.5,
        {"the gradient is not divided by the scale": -1.0, "the sign is wrong: a step subtracts the gradient": 1.5},
    )
    small = torch.tensor([2.0**-12], dtype=torch.float16)
    one(0.0, small, 2.0**14, 1.0, -(2.0**-26), {"the quotient is zero in float16: cast to float32 first": 0.0})
    divided = "divided by the scale: multiply by the float32 number nearest to 1 / scale"
    one(0.0, torch.tensor([7.0]), 3.0, 1.0, -2.3333334922790527, {divided: -2.3333332538604736})
    got = stepped(
        [torch.tensor([1.0, 2.0]), torch.tensor([[3.0]])], [torch.tensor([4.0, -8.0]), torch.tensor([[0.0]])], 4.0, 0.5
    )
    check.equal([p.tolist() for p in got], [[0.5, 3.0], [[3.0]]], what="two parameters after a step at scale 4")
    got = stepped([torch.zeros(0), torch.tensor([2.0])], [torch.zeros(0), torch.tensor([-8.0])], 4.0, 0.5)
    check.equal([p.tolist() for p in got], [[], [3.0]], what="an empty parameter and another after a step at scale 4")
    ### BEGIN HIDDEN TESTS
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        theirs = [torch.nn.Parameter(torch.randn(3, 5, generator=generator)), torch.nn.Parameter(torch.zeros(7))]
        optimizer = torch.optim.SGD(theirs, lr=2.0**-4)
        scaler = torch.amp.GradScaler("cpu", init_scale=(1000.0, 3.0, 2.0**15)[seed])
        scaler.scale(torch.zeros(()))  # lets it make its scale
        ours, scale = [p.detach().clone() for p in theirs], scaler.get_scale()
        for _ in range(20):
            scaled = [torch.randn(p.shape, generator=generator) * scale for p in theirs]
            for parameter, gradient in zip(theirs, scaled, strict=True):
                parameter.grad = gradient.clone()
            scaler.step(optimizer)
            scaler.update()
            ours = stepped(ours, scaled, scale, 2.0**-4)
        for a, b in zip(ours, theirs, strict=True):
            check.equal(
                a.tolist(), b.tolist(), what=f"parameters after 20 steps at scale {scale:g}, compared with torch's"
            )
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "scaled_step_test_skips", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("scaled_step", "steps that are skipped", part="skips", hidden="other tensors"):

    def skips(gradients, expected, case, scale=4.0):
        start = [torch.full(g.shape, 2.0) for g in gradients]
        _, after, skipped = scaled_step(Scaler(scale), start, gradients, 0.5)
        check.equal(skipped, expected, what=f"whether a step with {case} is skipped")
        if expected:
            moved = [place for place, (a, b) in enumerate(zip(after, start, strict=True)) if not torch.equal(a, b)]
            check.true(
                not moved, f"parameters after a skipped step with {case}: number {moved} moved, expected none to"
            )

    good = torch.tensor([4.0, -8.0])
    skips([good, torch.tensor([[1.0]])], False, "finite gradients")
    skips([torch.zeros(0), good], False, "an empty gradient beside finite ones")
    skips([torch.zeros(0), torch.tensor([-math.inf])], True, "an empty gradient beside an infinite one")
    for bad, name in ((math.inf, "an infinite"), (math.nan, "a NaN"), (-math.inf, "a negative infinite")):
        skips([good, torch.tensor([[bad]])], True, f"{name} element in the second tensor")
        skips([torch.tensor([1.0, bad]), good], True, f"{name} element in the first tensor")
    skips([torch.tensor([3e38, 3e38])], False, "the finite gradients 3e38 and 3e38, whose sum is infinite")
    large = torch.tensor([6e4, 6e4], dtype=torch.float16)
    skips([large], False, "the finite float16 gradients 60000 and 60000, whose sum float16 cannot hold")
    skips(
        [torch.tensor([3e38])], False, "the finite gradient 3e38 of a loss scaled by 1/4, infinite once unscaled", 0.25
    )
    ### BEGIN HIDDEN TESTS
    for place in range(6):
        for bad in (math.inf, math.nan, -math.inf):
            gradient = torch.zeros(2, 3, dtype=(torch.float16, torch.float32)[place % 2])
            gradient.view(-1)[place] = bad
            skips([torch.zeros(3), gradient, torch.ones(2)], True, f"{bad} at place {place} of the second tensor")
    skips([torch.tensor([3e38, 3e38, -3e38, -3e38])] * 2, False, "finite gradients that overflow when they are added")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "scaled_step_test_scale", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("scaled_step", "the scale that follows", part="scale", hidden="500 steps compared with torch's"):

    def next_of(scaler, overflow):
        gradient = torch.tensor([math.inf if overflow else 0.0])
        new, _, skipped = scaled_step(scaler, [torch.zeros(1)], [gradient], 1.0)
        check.equal(
            skipped, overflow, what=f"whether a step with the gradient {gradient.item():g} and {scaler} is skipped"
        )
        kind = type(new.scale).__name__
        check.true(isinstance(new.scale, float), f"the scale after {scaler} is of type {kind}: expected a float")
        return new

    check.equal(next_of(Scaler(1024.0), False), Scaler(1024.0, clean=1), what="the scaler after a clean step")
    check.equal(
        next_of(Scaler(1024.0, interval=3, clean=2), False),
        Scaler(2048.0, interval=3),
        what="the scaler after the third clean step, interval 3",
    )
    check.equal(
        next_of(Scaler(1024.0, interval=1), False),
        Scaler(2048.0, interval=1),
        what="the scaler after a step, interval 1",
    )
    check.equal(next_of(Scaler(1024.0, clean=77), True), Scaler(512.0), what="the scaler after an overflow, clean = 77")
    check.equal(
        next_of(Scaler(2.0**127, interval=1), False),
        Scaler(2.0**127, interval=1),
        what="the scaler after a clean step at 2^127, growth 2, interval 1 (float32 ends below 2^128)",
    )
    check.equal(
        next_of(Scaler(LARGEST_SCALE / 2, interval=1), False),
        Scaler(LARGEST_SCALE, interval=1),
        what="the scaler after a clean step at half of float32's largest number, growth 2, interval 1",
    )
    for scaler, overflow, what, expected, unrounded in (
        (Scaler(3.0, growth=1.1, interval=1), False, "3 · 1.1", 3.299999952316284, 3.3000000000000003),
        (Scaler(3.0, backoff=0.3), True, "3 · 0.3", 0.8999999761581421, 0.8999999999999999),
    ):
        got = next_of(scaler, overflow).scale
        hint_of = first_cause(got, {"round it to float32": unrounded})
        check.close(got, expected, rtol=0, what=f"{what} as a scale", hint=hint_of)
    scaler, scales = Scaler(1000.0, 1.7, 0.3, 3), (1000.0, 1000.0, 1700.0, 1700.0, 510.0, 510.0, 510.0, 867.0)
    for step, scale in enumerate((*scales, 260.1000061035156, 260.1000061035156, 260.1000061035156, 442.1700134277344)):
        scaler = next_of(scaler, step in (4, 8))
        what = f"scale after step {step} (start 1000, growth 1.7, backoff 0.3, interval 3; steps 4 and 8 overflow)"
        check.equal(scaler.scale, scale, what=what)
    ### BEGIN HIDDEN TESTS

    def follow(steps, seed, start, growth, backoff, interval, bad_share):
        """torch's scale beside the student's, over the same gradients."""
        rng, weight = check.rng(seed), torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.0)
        theirs = torch.amp.GradScaler("cpu", start, growth, backoff, interval)
        theirs.scale(torch.zeros(()))  # lets it make its scale
        ours = Scaler(float(np.float32(start)), growth, backoff, interval)
        for step in range(steps):
            bad = rng.random() < bad_share
            weight.grad = torch.tensor([(math.inf, math.nan, -math.inf)[step % 3] if bad else 1.0])
            ours = scaled_step(ours, [torch.zeros(1)], [weight.grad.clone()], 1.0)[0]
            theirs.step(optimizer)
            theirs.update()
            check.equal(
                ours.scale,
                theirs.get_scale(),
                what=f"scale after step {step} (start {start:g}, growth {growth:g}, backoff {backoff:g}, interval {interval}), compared with torch's",
            )

    follow(25, 1, 1000.0, 1.7, 0.3, 3, 0.1)
    follow(500, 0, 2.0**16, 2.0, 0.5, 20, 0.06)
    follow(60, 2, 2.0**124, 2.0, 0.5, 2, 0.05)
    check.equal(
        next_of(Scaler(2.0**127, interval=5, clean=4), False).clean, 0, what="clean after a growth that was left out"
    )
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "scaled_step",
    "Decide once for all tensors, with `torch.isfinite` on every element. A sum can overflow although all of its terms are finite, and an empty tensor has no largest element.",
    "`float(np.float32(x))` rounds to float32. Cast a float16 gradient to float32 *before* you multiply it by the inverse.",
    "`replace(scaler, scale=…, clean=…)` makes the next scaler; write one `return` per row of the table. Does the scale grow at the step that makes `clean` reach `interval`, or at the next one? Try interval = 1.",
)
debrief(
    "scaled_step",
    """A power of two as a scale changes no mantissa, so scaled gradients lose nothing that unscaled ones would have kept. The
    search costs a step now and then, because overflow is noticed only after it has happened.

    One bad element skips the whole step. If only the finite gradients were applied, the parameters would belong to two
    different steps, and what an optimizer has added to its state cannot be taken out again.""",
    parts=("step", "skips", "scale"),
)
predict(
    "skipped",
    "Your scaler starts at 2³⁰ with an interval of 20 steps. The largest gradient of a batch is between 0.05 and 0.11, and float16 ends at 65,504. What percentage of 120 steps does it skip?",
    unit="%",
)


def watch_own_scaler(steps=120):
    """The scale at each step of a training with gradients in float16, and the steps that were skipped."""
    network, scaler, scales, thrown = digits_network(), Scaler(2.0**30, interval=20), [], []
    for step in range(steps):
        network.zero_grad()
        at = 64 * (step % 22)
        (loss_of(network, TRAINING[at : at + 64]) * scaler.scale).backward()
        scales.append(scaler.scale)
        weights = list(network.parameters())
        scaler, new, skipped = scaled_step(
            scaler, [p.detach() for p in weights], [p.grad.half() for p in weights], 2.0**-4
        )
        thrown += [step] * skipped
        with torch.no_grad():
            for weight, value in zip(weights, new, strict=True):
                weight.copy_(value)
    return scales, thrown


try:
    scales, thrown = watch_own_scaler()
except NotImplementedError:
    print("This cell trains with your loss scaler. It comes alive when exercise 3 passes.")
else:
    show.against_prediction("skipped", round(100 * len(thrown) / len(scales), 1), unit="%", source="measured here")
    with reveal("skipped"):
        show.figure(formats.draw_scale(scales, thrown))

# %% [markdown]
# ## 4 · Updates that are too small
#
# The neighbours of a bfloat16 weight of 1 are 1 + 1/128 and 1 − 1/256. If the sum of weight and update is nearer to the weight
# than to any other number, it is rounded back, and the update is lost. No warning is given; the loss merely stops falling.
#
# *Worked example.* With a bfloat16 weight of 1, an update of 1/256 is lost: the sum lies half-way to 1 + 1/128, and the code of 1
# is even. An update of 1/128 reaches the next number, and one of −1/256 the number below. With −1/512 the sum again lies
# half-way, and the update is lost.
#
# ### Exercise 4 (10 points)
#
# `lost(weights, updates) -> Tensor[bool]` says which updates have no effect.
#
# - `weights` is finite, float16 or bfloat16, and `updates` float32, of the same shape. Neither is changed.
# - True where the update is not zero, and the float32 sum of weight and update, rounded once to the dtype of `weights`, is the
#   weight itself. A sum too large for that dtype becomes infinite.
# - If the shapes differ, raise a `ValueError` that contains both, such as `(3, 3)` and `(3,)`.


# %% nbgrader={"grade": false, "grade_id": "lost", "locked": false, "schema_version": 3, "solution": true, "task": false}
def lost(weights: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Mark the updates, other than zero, that leave a 16-bit weight as it was."""
    ### BEGIN SOLUTION
    if weights.shape != updates.shape:
        raise ValueError(f"weights {tuple(weights.shape)} and updates {tuple(updates.shape)}: expected the same shape")
    return ((weights.float() + updates).to(weights.dtype) == weights) & (updates != 0)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "lost_test_values", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("lost", "updates without effect", part="values", hidden="other weights, updates and shapes"):

    def is_lost(weight, update, dtype, expected, cause):
        got = lost(torch.tensor([[weight]], dtype=dtype), torch.tensor([[update]]))
        what = f"an update of {update:g} to the {str(dtype).removeprefix('torch.')} weight {weight:g}"
        check.shape(got, (1, 1), what=what)
        check.dtype(got, torch.bool, what=what)
        said = ("is kept", "is lost")
        check.true(
            bool(got[0, 0]) == expected,
            f"{what} {said[expected]}: your answer says that it {said[not expected]}; {cause}",
        )

    for weight, expected in ((1.0, False), (512.0, True), (-512.0, True)):
        is_lost(weight, 2.0**-10, torch.float16, expected, "the spacing grows with the weight")
    for weight, update, expected, cause in (
        (1.0, 2.0**-10, True, "the sum rounds to 1"),
        (1.0, -(2.0**-10), True, "the sum rounds to 1"),
        (1.0, 2.0**-7, False, "the sum is the next number"),
        (1.0, 0.0, False, "an update of zero loses nothing"),
        (1.0, 2.0**-8, True, "the sum lies half-way, and 1 has the even code"),
        (1 + 2.0**-7, 2.0**-8, False, "the sum lies half-way, and the code of this weight is odd"),
        (1.0, -(2.0**-8), False, "below 1 the numbers lie twice as close"),
        (1.0, -(2.0**-9), True, "the sum lies half-way to 1 − 1/256, and 1 has the even code"),
        (1.0, -1.5 * 2.0**-9, False, "below 1 the numbers lie twice as close: this is more than half-way"),
        (1.0, 2.0**-8 + 2.0**-17, False, "the sum is just past half-way: do not round the update to 16 bits first"),
        (2.0**-40, 2.0**-41, False, "the sum is 1.5 times the weight: tiny numbers that are near are not equal"),
        (1.0, -2.0, False, "the sum is −1"),
        (1.0, math.inf, False, "the sum is infinite"),
    ):
        is_lost(weight, update, torch.bfloat16, expected, cause)
    for weight, update, expected, cause in (
        (0.0, 2.0**-25, True, "the sum lies half-way to the smallest number, 2⁻²⁴, and the code of 0 is even"),
        (0.0, -(2.0**-24), False, "the sum is the smallest number below 0"),
        (2.0**-24, 2.0**-25, False, "the sum lies half-way to 2⁻²³, and the code of 2⁻²⁴ is odd"),
        (65504.0, 8.0, True, "the sum rounds to 65504"),
        (65504.0, 16.0, False, "the sum lies half-way to 65536: it rounds to infinity, whose code is even"),
        (-65504.0, -1e30, False, "the sum rounds to −infinity"),
    ):
        is_lost(weight, update, torch.float16, expected, cause)
    weights, updates = torch.ones(2, dtype=torch.float16), torch.ones(2)
    lost(inout(weights), inout(updates))
    after = weights.tolist() + updates.tolist()
    check.equal(after, [1.0, 1.0, 1.0, 1.0], what="the weights and updates that lost was given, after it")
    ### BEGIN HIDDEN TESTS
    for dtype, digits in ((torch.bfloat16, 8), (torch.float16, 11)):
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            exponents = torch.randint(-9, 9, (12, 5), generator=generator)
            weights = (torch.randn(12, 5, generator=generator) * 2.0**exponents).to(dtype)
            weights[:, 0] = (2.0 ** torch.arange(-6, 6)).to(dtype)
            spacing = 2.0 ** (torch.frexp(weights.float())[1] - digits).double()
            shares = torch.tensor([-1.0, -0.5, -0.375, -0.25, -0.2, 0.2, 0.375, 0.5, 0.75, 0.0]).double()
            updates = (spacing * shares[torch.randint(0, 10, (12, 5), generator=generator)]).float()
            codes = weights.view(torch.int16).int() & 0x7FFF
            exact = (weights.double().abs() + updates.double() * weights.double().sign()).float().double()
            up = (weights.double().abs() + ((codes + 1).to(torch.int16).view(dtype)).double()) / 2
            down = (weights.double().abs() + ((codes - 1).to(torch.int16).view(dtype)).double()) / 2
            even = codes % 2 == 0
            stays = torch.where(even, (exact >= down) & (exact <= up), (exact > down) & (exact < up))
            check.equal(
                lost(weights, updates).tolist(),
                (stays & (updates != 0)).tolist(),
                what=f"lost updates of {dtype}, seed {seed}",
            )
    check.shape(lost(torch.ones(2, 0, dtype=torch.float16), torch.ones(2, 0)), (2, 0), what="lost of an empty tensor")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "lost_test_shapes", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("lost", "shapes that differ", part="shapes", hidden="other shapes"):
    check.raises(ValueError, lost, torch.ones(3, dtype=torch.float16), torch.ones(2), names=("(3,)", "(2,)"))
    check.raises(ValueError, lost, torch.ones(3, 3, dtype=torch.bfloat16), torch.ones(3), names=("(3, 3)", "(3,)"))
    check.raises(ValueError, lost, torch.ones(2, 1, dtype=torch.bfloat16), torch.ones(1, 2), names=("(2, 1)", "(1, 2)"))
    check.accepts(lost, torch.ones(3, 3, dtype=torch.float16), torch.ones(3, 3))
    ### BEGIN HIDDEN TESTS
    check.raises(ValueError, lost, torch.ones(4, 1, dtype=torch.float16), torch.ones(4), names=("(4, 1)", "(4,)"))
    check.raises(ValueError, lost, torch.ones((), dtype=torch.bfloat16), torch.ones(1), names=("()", "(1,)"))
    check.accepts(lost, torch.ones((), dtype=torch.bfloat16), torch.ones(()))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "lost",
    "Half a spacing is not the same below a weight as above it, and a tie may go either way. Is there a way to see whether an update is lost that needs no threshold?",
    "By hand: a bfloat16 weight of 1 and an update of 1/256 + 2⁻²⁰. The sum lies just above half-way, so the update is not lost. What becomes of the answer if the update is rounded to bfloat16, to 1/256, before it is added? And what does PyTorch do with shapes (3, 3) and (3,)?",
)
debrief(
    "lost",
    """An update survives if it is larger than half the distance to the next number in its direction. That distance is 2⁻⁸ to 2⁻⁷ of a bfloat16
    weight, so updates below 0.2% to 0.4% of the weight are lost. Adam moves a weight by about the learning rate per step, so a
    weight of 0.1 no longer feels a rate below 2.4·10⁻⁴, half of its spacing of 2⁻¹¹.

    The dives train a network that way, and count its lost updates.""",
    parts=("values", "shapes"),
)
predict("stuck", "A bfloat16 weight is 1. You add 1/4096 to it, 4,096 times. What is it then?")
predict("stuck_masters", "What is it if the sum is kept in float32, and the weight is that sum rounded to bfloat16?")

weight, master = torch.ones(1, dtype=torch.bfloat16), torch.ones(1)
for _ in range(4096):
    weight, master = weight + torch.tensor([2.0**-12], dtype=torch.bfloat16), master + 2.0**-12
show.against_prediction("stuck", weight.item())
show.against_prediction("stuck_masters", master.bfloat16().item())


with reveal("stuck_masters"):
    animate(
        formats.draw_master,
        range(0, 65, 8),
        seconds=0.9,
        caption="Each update is lost next to a bfloat16 weight of 1. A float32 master moves with each, and the weight follows it.",
    )

# %% [markdown]
# ## 5 · Master weights
#
# The cure costs memory: the optimizer keeps a float32 copy of each weight, the **master**, and updates that. The model gets
# the master rounded to 16 bits.
#
# *Worked example.* Master 1, momentum 4, gradient 2, learning rate 0.5, momentum factor 0.25: the new momentum is
# 0.25 · 4 + 2 = 3, and the master becomes 1 − 0.5 · 3 = −0.5.
#
# ### Exercise 5 (14 points)
#
# `master_step(state, gradients, learning_rate, momentum, dtype) -> (Masters, Tensor)` is one step of SGD.
#
# - `state` is a `Masters` with the float32 tensors `weights` and `momentum`; `gradients` come in 16 bits.
# - The new momentum is *momentum · old momentum + gradient*, and the new masters are *masters − learning_rate · new
#   momentum*.
# - The second result is the model's weights: the new masters, rounded to `dtype`.
# - Everything else happens in float32, and the state holds float32 only. Do not change the tensors you were given.
#
# It follows `torch.optim.SGD` on float32 weights bit for bit. Learning rates are powers of two.


# %% nbgrader={"grade": false, "grade_id": "master_step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def master_step(
    state: Masters, gradients: torch.Tensor, learning_rate: float, momentum: float, dtype: torch.dtype
) -> tuple[Masters, torch.Tensor]:
    """One step of SGD with momentum on the masters, and the weights that the model gets."""
    ### BEGIN SOLUTION
    velocity = momentum * state.momentum + gradients.float()
    weights = state.weights - learning_rate * velocity
    return Masters(weights, velocity), weights.to(dtype)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "master_step_test_values", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("master_step", "a step on the masters", part="values", hidden="other shapes and numbers"):

    def after(weight, moment, gradient, rate, momentum, expected, slips):
        """One step on single numbers that 16 bits can hold."""
        state = Masters(torch.tensor([weight]), torch.tensor([moment]))
        new, model = master_step(state, torch.tensor([gradient], dtype=torch.float16), rate, momentum, torch.float16)
        case = f"(master {weight:g}, momentum {moment:g}, gradient {gradient:g}, rate {rate:g}, factor {momentum:g})"
        found = (new.momentum.item(), new.weights.item(), model.item())
        for place, name in enumerate(("momentum", "master", "weight of the model")):
            cause = first_cause(found[place], {key: values[place] for key, values in slips.items()})
            check.close(found[place], expected[place], rtol=0, what=f"{name} {case}", hint=cause)

    after(
        weight=1.0,
        moment=4.0,
        gradient=2.0,
        rate=0.5,
        momentum=0.25,
        expected=(3.0, -0.5, -0.5),
        slips={
            "the learning rate belongs to the masters' step, not to the momentum": (2.0, -1.0, -1.0),
            "the gradient is not multiplied by the momentum factor": (1.5, 0.25, 0.25),
            "the gradient counts with 1 − momentum: that is Adam's average": (2.5, -0.25, -0.25),
            "the masters move by the gradient: expected the new momentum": (3.0, 0.0, 0.0),
            "the masters move by the old momentum": (3.0, -1.0, -1.0),
            "the sign is wrong: a step subtracts from the masters": (3.0, 2.5, 2.5),
        },
    )
    after(1.0, 0.0, 2.0, 0.5, 0.0, (2.0, 0.0, 0.0), {})
    after(1.0, 4.0, -math.inf, 0.5, 0.25, (-math.inf, math.inf, math.inf), {})
    state, model = master_step(
        Masters(torch.ones(2, 3), torch.zeros(2, 3)), torch.ones(2, 3, dtype=torch.bfloat16), 0.5, 0.5, torch.bfloat16
    )
    for tensor, name in ((state.weights, "masters"), (state.momentum, "momentum"), (model, "weights of the model")):
        check.shape(tensor, (2, 3), what=f"the {name} of a (2, 3) tensor")
    given = Masters(torch.ones(2), torch.ones(2))
    given = arguments_after(master_step, given, torch.ones(2).half(), 0.5, 0.5, torch.float16)
    for tensor, name in ((given[0].weights, "masters"), (given[0].momentum, "momentum"), (given[1], "gradients")):
        check.equal(tensor.tolist(), [1.0, 1.0], what=f"the {name} that master_step was given, after it")
    ### BEGIN HIDDEN TESTS
    generator = torch.Generator().manual_seed(3)
    numbers = torch.randint(-8, 9, (3, 4, 5), generator=generator).float()
    new, model = master_step(Masters(numbers[0], numbers[1]), numbers[2].half(), 0.25, 0.5, torch.float16)
    velocity = 0.5 * numbers[1] + numbers[2]
    check.equal(new.momentum.tolist(), velocity.tolist(), what="momentum of a (4, 5) tensor")
    check.equal(new.weights.tolist(), (numbers[0] - 0.25 * velocity).tolist(), what="masters of a (4, 5) tensor")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "master_step_test_precision", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("master_step", "nothing is lost", part="precision", hidden="40 steps compared with torch's SGD"):

    def kept(state, model, dtype):
        check.dtype(state.weights, torch.float32, what="the masters")
        check.dtype(state.momentum, torch.float32, what="the momentum")
        check.dtype(model, dtype, what="the weights that the model gets")

    odd = master_step(
        Masters(torch.tensor([1 + 3 * 2.0**-8]), torch.zeros(1)), torch.zeros(1).half(), 1.0, 0.0, torch.bfloat16
    )[1]
    check.dtype(odd, torch.bfloat16, what="the weights that the model gets in bfloat16, after gradients in float16")
    cut = {"cut off: round to the nearest": 1 + 2.0**-7}
    check.close(
        odd.item(), 1 + 2.0**-6, rtol=0, what="1 + 3 · 2⁻⁸ rounded to bfloat16", hint=first_cause(odd.item(), cut)
    )
    state, model = Masters(torch.ones(1), torch.zeros(1)), None
    for _ in range(64):
        state, model = master_step(state, torch.tensor([-1.0], dtype=torch.bfloat16), 2.0**-12, 0.0, torch.bfloat16)
        kept(state, model, torch.bfloat16)
    cause = "the masters were rounded: then every update is lost" if state.weights.item() == 1 else ""
    check.close(state.weights.item(), 1.015625, rtol=0, what="the master after 64 steps of 2⁻¹²", hint=cause)
    check.close(model.item(), 1.015625, rtol=0, what="the weight of the model after 64 steps of 2⁻¹²")
    state, model = master_step(
        Masters(torch.tensor([1.0]), torch.tensor([2.0**-9])),
        torch.ones(1, dtype=torch.bfloat16),
        0.5,
        0.5,
        torch.bfloat16,
    )
    got = state.momentum.item()
    cause = first_cause(got, {"rounded to 16 bits: cast the gradient to float32 first": 1.0})
    check.close(got, 1 + 2.0**-10, rtol=0, what="0.5 · 2⁻⁹ + 1 as momentum", hint=cause)
    check.close(state.weights.item(), 0.5 - 2.0**-11, rtol=0, what="the master 1 − 0.5 · (1 + 2⁻¹⁰)")
    check.close(model.item(), 0.5, rtol=0, what="the weight of the model, 0.5 − 2⁻¹¹ rounded to bfloat16")
    state, model = master_step(
        Masters(torch.zeros(1), torch.tensor([3.0])), torch.ones(1).half(), 0.5, 0.6, torch.float16
    )
    kept(state, model, torch.float16)
    got = state.momentum.item()
    slips = {
        "computed in float64 and rounded at the end": 2.799999952316284,
        "the old momentum was rounded to 16 bits": 2.7998046875,
    }
    cause = first_cause(got, slips)
    check.close(got, 2.8000001907348633, rtol=0, what="0.6 · 3 + 1 in float32, as momentum", hint=cause)
    fine = torch.tensor([1 + 2.0**-10]).half()
    new, _ = master_step(Masters(torch.zeros(1), torch.zeros(1)), fine, 1.0, 0.5, torch.bfloat16)
    got = new.momentum.item()
    cause = first_cause(got, {"the gradient was rounded to the dtype of the model's weights": 1.0})
    what = "the momentum after a float16 gradient of 1 + 2⁻¹⁰, for bfloat16 weights"
    check.close(got, 1 + 2.0**-10, rtol=0, what=what, hint=cause)
    ### BEGIN HIDDEN TESTS
    for dtype in (torch.bfloat16, torch.float16):
        for momentum in (0.0, 0.9):
            generator = torch.Generator().manual_seed(5)
            first = torch.randn(4, 9, generator=generator)
            single = torch.nn.Parameter(first.clone())
            optimizer = torch.optim.SGD([single], lr=2.0**-9, momentum=momentum)
            state = Masters(first, torch.zeros(4, 9))
            for step in range(40):
                gradient = (torch.randn(4, 9, generator=generator) * 2.0**-3).to(dtype)
                single.grad = gradient.float()
                optimizer.step()
                state, model = master_step(state, gradient, 2.0**-9, momentum, dtype)
                kept(state, model, dtype)
                check.true(
                    torch.equal(state.weights, single.detach()),
                    f"masters after step {step}, momentum {momentum}, are not torch's",
                )
                check.true(
                    torch.equal(model, single.detach().to(dtype)),
                    f"weights of the model after step {step} are not the masters, rounded",
                )
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "master_step",
    "Three lines: the new momentum, the new masters, and the copy. `gradients.float()` comes first.",
    "The learning rate is in the masters' step only, and the factor `momentum` multiplies the old momentum only.",
    "Never read the old 16-bit weights or the model's copy: they have already lost the digits that the masters keep.",
)
debrief(
    "master_step",
    """The masters sum up small updates until together they are large enough to reach the next 16-bit number. The model still
    computes with 16-bit weights, which is precise enough for its products, and no update is lost.

    This costs 4 bytes per parameter for the master in addition to 2 for the copy. Autocast gets to the same place from the
    other side: it keeps the parameters in float32, and casts copies for the products.""",
    parts=("values", "precision"),
)
term("master weights")
myth("prec-6")
adam_weight = nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
adam = torch.optim.AdamW([adam_weight], lr=1e-4, weight_decay=0.0)
adam_weight.grad = torch.ones_like(adam_weight)
adam.step()
dtypes = {str(v.dtype).removeprefix("torch.") for v in adam.state[adam_weight].values() if v.shape == adam_weight.shape}
assert dtypes == {"bfloat16"}
audit(
    "prec-6",
    100 * (adam_weight == 1).float().mean().item(),
    "% of the weights did not move",
    "CPU",
    "corrected",
    how=f"torch.optim.AdamW on 1,000 bfloat16 weights of 1, one step of 10⁻⁴: its state is {', '.join(dtypes)}, there is no master copy, and the update is lost. Frameworks that promise masters (Megatron, DeepSpeed) add them themselves",
)

# %% [markdown]
# ## 6 · Eight bits: a scale per tensor
#
# float8_e4m3fn reaches from 0.002 to 448, so each *tensor* gets a scale of its own, which takes its largest magnitude, the
# **amax**, to 448. To know the amax you must read the tensor before you can cast it. **Delayed scaling** saves that pass: it
# uses the amaxes of earlier steps and records the new one on the way. Elements that are larger than expected are clipped.
# NVIDIA's Transformer Engine began with this recipe in 2022, with float8_e5m2 for gradients. It is dated, as section 7 shows,
# but in 2026 it is still that library's default on Hopper.
#
# *Worked example.* For float8_e4m3fn and a window of 2, the amaxes 2, 8, 1, 1 arrive. After each of them, the scale for the
# next tensor is 448/2 = 224, 448/8 = 56, 56 again (the 8 is still in the window) and 448/1 = 448.
#
# ### Exercise 6 (12 points)
#
# `next_delayed(state, amax, largest, margin, window) -> Delayed` returns the state after one more tensor. `largest` is the
# format's largest number.
#
# - Append `amax`, rounded to float32, to `state.history` (a tuple, newest last), and keep the newest `window` of them.
# - The new scale is *largest · 2^(−margin) / m*, where m is the largest amax in that history, divided in float32 and returned
#   as a `float`.
# - If m is 0, the scale stays. If the quotient is infinite, the scale is `LARGEST_SCALE`, the largest float32 number.
# - If the rounded `amax` is infinite or NaN, return the state as it was.


# %% nbgrader={"grade": false, "grade_id": "next_delayed", "locked": false, "schema_version": 3, "solution": true, "task": false}
def next_delayed(state: Delayed, amax: float, largest: float, margin: int, window: int) -> Delayed:
    """The state after a tensor whose largest magnitude was `amax`."""
    ### BEGIN SOLUTION
    with np.errstate(over="ignore"):
        newest = float(np.float32(amax))
    if not math.isfinite(newest):
        return state
    history = (*state.history, newest)[-window:]
    reference = max(history)
    if reference == 0:
        return Delayed(state.scale, history)
    with np.errstate(over="ignore"):
        scale = float(np.float32(largest * 2.0**-margin) / np.float32(reference))
    return Delayed(min(scale, LARGEST_SCALE), history)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "next_delayed_test_values", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("next_delayed", "scales from a history", part="values", hidden="other histories, margins and windows"):

    def delayed(state, amax, largest, margin, window, expected, slips=()):
        got = next_delayed(state, amax, largest, margin, window)
        case = f"of {state} after an amax of {amax:g}, largest {largest:g}, margin {margin}, window {window}"
        check.equal(got.history, expected.history, what=f"next_delayed(…).history {case}")
        check.close(
            got.scale,
            expected.scale,
            rtol=0,
            what=f"next_delayed(…).scale {case}",
            hint=first_cause(got.scale, dict(slips)),
        )
        check.equal(got, expected, what=f"next_delayed {case}")
        kind = type(got.scale).__name__
        check.true(isinstance(got.scale, float), f"next_delayed(…).scale {case} is of type {kind}: expected a float")
        return got

    state = Delayed()
    inverse = "this is amax / largest: the scale multiplies the tensor"
    newest = "this comes from the newest amax: take the largest of the window"
    without = "that leaves out the new amax: append it first"
    for amax, scale, history, slips in (
        (2.0, 224.0, (2.0,), {inverse: 0.004464285913854837, without: 1.0}),
        (8.0, 56.0, (2.0, 8.0), {without: 224.0}),
        (1.0, 56.0, (8.0, 1.0), {newest: 448.0}),
        (1.0, 448.0, (1.0, 1.0), {without: 56.0}),
    ):
        state = delayed(state, amax, 448.0, 0, 2, Delayed(scale, history), slips)
    up = "a margin divides by 2^margin, so that the tensor stays below the top"
    delayed(
        Delayed(),
        1.0,
        448.0,
        2,
        16,
        Delayed(112.0, (1.0,)),
        {up: 1792.0, "the margin is missing": 448.0, "2^margin, not margin": 224.0},
    )
    delayed(
        Delayed(3.0, (8.0, 4.0)),
        2.0,
        57344.0,
        0,
        1,
        Delayed(28672.0, (2.0,)),
        {"with a window of 1 only the new amax counts": 14336.0},
    )
    double = {"divide in float32": 149.33333333333334}
    delayed(Delayed(), 3.0, 448.0, 0, 4, Delayed(149.3333282470703, (3.0,)), double)
    delayed(Delayed(), 0.1, 448.0, 0, 4, Delayed(4480.0, (0.10000000149011612,)))
    ### BEGIN HIDDEN TESTS
    for seed in range(4):
        rng, margin, window = check.rng(seed), seed - 1, (1, 3, 5, 40)[seed]
        largest, state, history = (448.0, 57344.0)[seed % 2], Delayed(), []
        for amax in (10.0 ** rng.uniform(-5, 3, 25)).tolist():
            history = [*history, float(np.float32(amax))][-window:]
            scale = float(np.float32(np.float32(largest * 2.0**-margin) / np.float32(max(history))))
            state = delayed(state, amax, largest, margin, window, Delayed(scale, tuple(history)))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "next_delayed_test_limits", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("next_delayed", "zeros, tiny numbers, infinities", part="limits", hidden="other states"):

    def after_amax(state, amax, window, expected, margin=0):
        got = next_delayed(state, amax, 448.0, margin, window)
        single = " (infinite in float32)" if LARGEST_SCALE < amax < math.inf else ""
        check.equal(
            got,
            expected,
            what=f"next_delayed of {state} after an amax of {amax:g}{single}, window {window}, margin {margin}",
        )

    after_amax(Delayed(7.0), 0.0, 16, Delayed(7.0, (0.0,)))
    after_amax(Delayed(7.0, (0.0,)), 0.0, 16, Delayed(7.0, (0.0, 0.0)))
    after_amax(Delayed(7.0, (2.0,)), 0.0, 16, Delayed(224.0, (2.0, 0.0)))
    after_amax(Delayed(), 1e-40, 16, Delayed(LARGEST_SCALE, (9.99994610111476e-41,)))
    scale = 1.4887353552791058e38  # 448 / 2⁻¹²⁰ is infinite in float32, a quarter of it is not
    after_amax(Delayed(), 2.0**-120, 16, Delayed(scale, (2.0**-120,)), margin=2)
    for amax in (math.inf, math.nan, 1e39):
        after_amax(Delayed(7.0, (2.0, 3.0)), amax, 1, Delayed(7.0, (2.0, 3.0)))
    ### BEGIN HIDDEN TESTS
    for amax in (math.inf, math.nan):
        after_amax(Delayed(3.0, (5.0, 1.0)), amax, 2, Delayed(3.0, (5.0, 1.0)))
        after_amax(Delayed(), amax, 1, Delayed())
    after_amax(Delayed(5.0, (0.0,)), 0.0, 1, Delayed(5.0, (0.0,)))
    after_amax(Delayed(2.0, (4.0,)), 0.0, 1, Delayed(2.0, (0.0,)))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "next_delayed",
    "The history is a tuple: `(*a, b)` appends, and a slice keeps the newest. Take the maximum after the new amax is in it.",
    'Two `np.float32` numbers divide in float32. `np.errstate(over="ignore")` silences the warning about an infinite quotient.',
    "Round the amax first. Return early if it is not finite, and for a maximum of zero. What is the smaller of infinity and `LARGEST_SCALE`?",
)
debrief(
    "next_delayed",
    """The recipe takes the largest amax because the two possible mistakes do not cost the same. A scale that is too small
    costs little, since floating point keeps its relative precision until the small elements become subnormal. A scale that is
    too large clips the largest elements, which contribute most to the product.""",
    parts=("values", "limits"),
)


def draw_row(large, small):
    """64 normally distributed numbers, one of them large and the second half small, under three kinds of scales."""
    x = drawn(64, seed=5) * torch.where(torch.arange(64) < 32, 1.0, 10.0**small)
    x[5] = large
    return formats.draw_row(x)


explore(
    draw_row,
    labels={"large": "element 5", "small": "size of the second half, power of ten"},
    large=(1, 301, 10, 31),
    small=(-6, 0, 1, -4),
)

# %% [markdown]
# ## 7 · Which recipe?
#
# Current practice computes scales from the tensor itself, and often more than one per tensor. `stored(x, recipe, history)`
# emulates what a recipe keeps of a float32 matrix:
#
# | recipe | bits per element | scales |
# |---|---|---|
# | `nvfp4` | 4.5 | float8_e4m3fn per 16 neighbours, float32 per tensor |
# | `delayed` | 8 | per tensor, from `history`, so that the tensor is read once; from its own amax without a `history` |
# | `current` | 8 | per tensor, from its own amax |
# | `mxfp8` | 8.25 | a power of two per 32 neighbours |
# | `bfloat16`, `float32` | 16, 32 | none |
#
# The explorer above stores one row of numbers in three of them. What does one large number cost its neighbours?
#
# *Worked example* (the errors are invented). The errors of the worst token are 60%, 80%, 9%, 8%, 1% and 0, in the order of the
# table, and 10% is allowed. The first that is good enough is `current`.
#
# ### Exercise 7 (12 points)
#
# `choose_recipe(x, weight, history, most_error) -> str` returns the cheapest recipe that is good enough.
#
# - x (tokens, k) and weight (outputs, k) are float32; k is a multiple of 32. `history` holds amaxes of earlier x.
# - A recipe's product is `stored(x, recipe, history)` · `stored(weight, recipe)`ᵀ, and the exact one x · weightᵀ, all in
#   float64.
# - The error of a token is the norm of the difference between its rows in the two products, divided by the norm of its row in
#   the exact one, which is never zero. The *worst* token counts.
# - `RECIPES` has the names, cheapest first. Return the first whose worst error is at most `most_error`.


# %% nbgrader={"grade": false, "grade_id": "choose_recipe", "locked": false, "schema_version": 3, "solution": true, "task": false}
def choose_recipe(x: torch.Tensor, weight: torch.Tensor, history: tuple[float, ...], most_error: float) -> str:
    """The cheapest recipe whose product is good enough for every token."""
    ### BEGIN SOLUTION
    right = x.double() @ weight.double().T

    def error(recipe):
        product = stored(x, recipe, history).double() @ stored(weight, recipe).double().T
        return ((product - right).norm(dim=1) / right.norm(dim=1)).max().item()

    return next(recipe for recipe in RECIPES if error(recipe) <= most_error)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "choose_recipe_test", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose_recipe", "the cheapest recipe that is good enough", hidden="other matrices and limits"):
    WEIGHT = 0.02 * drawn(16, 128, seed=1)

    def chosen(expected, errors, x, history, most, case, weight=WEIGHT, slips=()):
        """`errors` has the error of the worst token for each recipe, in the order of RECIPES."""
        worst_token = dict(zip(RECIPES, errors, strict=True))
        got = choose_recipe(x, weight, history, most)
        what = f"choose_recipe for {case}, at most {100 * most:g}%"
        check.true(got in RECIPES, f"{what} returned {got!r}: expected one of {', '.join(RECIPES)}")
        costlier = [*RECIPES].index(got) > [*RECIPES].index(expected)
        why = f"{expected} is cheaper, and its" if costlier else "its"
        why += f" worst token is off by {100 * worst_token[expected if costlier else got]:.3g}%"
        cause = dict(slips).get(got, "")
        check.true(got == expected, f"{what} returned {got!r}, but {why}" + (f"; {cause}" if cause else ""))

    plain = drawn(12, 128, seed=2)
    amax = plain.abs().max().item()
    usual = (0.1858, 0.06104, 0.06104, 0.07648, 0.003639, 0)
    outlier = plain.clone()
    outlier[3, 5] = 3000.0
    quiet = plain * 10.0 ** torch.linspace(-5, 0, 12)[:, None]
    chosen("nvfp4", usual, plain, (amax,), 0.25, "plain tokens")
    chosen("delayed", usual, plain, (amax,), 0.1, "plain tokens")
    chosen(
        "delayed",
        (0.1858, 0.06104, 0.06104, 0.06654, 0.004148, 0),
        plain,
        (amax,),
        0.1,
        "plain tokens and a weight 1,000 times as large",
        1000 * WEIGHT,
        {"current": "only x has a history: a larger weight must not be clipped by it"},
    )
    chosen("delayed", usual, plain, (amax, amax / 20), 0.1, "plain tokens whose largest earlier amax fits")
    chosen(
        "current",
        (0.1858, 0.5769, 0.06104, 0.07648, 0.003639, 0),
        plain,
        (amax / 4, amax / 8),
        0.1,
        "tokens four times as large as any before",
    )
    chosen(
        "delayed",
        (0.2091, 0.05929, 0.05929, 0.07648, 0.003639, 0),
        outlier,
        (3000.0,),
        0.1,
        "tokens of which one has an outlier",
    )
    chosen(
        "mxfp8",
        (0.2371, 0.6328, 0.6328, 0.06478, 0.003395, 0),
        quiet,
        (amax,),
        0.1,
        "tokens of which some are 100,000 times as small",
    )
    chosen(
        "delayed",
        (0.137, 0.01541, 0.01541, 0.02116, 0.002189, 0),
        torch.ones(2, 128),
        (1.0,),
        0.1,
        "tokens of ones, which every recipe keeps exactly",
    )
    chosen("delayed", usual, plain, (), 0.1, "plain tokens without a history")
    chosen("delayed", usual, plain, (amax,), 0.065, "plain tokens")
    halved, second = torch.zeros(2, 32), torch.eye(32)[1:2]
    halved[0, 1], halved[1, :2] = 8.0, torch.tensor([100.0, 1.0])  # exact in any order of sums, so the limit can be met
    chosen(
        "delayed",
        (1, 0.5, 0.004464, 0, 0, 0),
        halved,
        (4.0,),
        0.5,
        "a token that a scale from an amax of 4 cuts from 8 to 4, an error of exactly 50%",
        second,
    )
    chosen("bfloat16", usual, plain, (amax,), 0.05, "plain tokens")
    chosen("bfloat16", usual, plain, (amax,), 0.005, "plain tokens")
    chosen("float32", usual, plain, (amax,), 0.0, "plain tokens")
    chosen(
        "delayed",
        (0.1858, 0.06104, 0.06104, 0.05806, 0.003847, 0),
        1e25 * plain,
        (1e25 * amax,),
        0.1,
        "plain tokens times 10²⁵, whose squares only float64 can hold",
    )
    ### BEGIN HIDDEN TESTS

    def worst(x, weight, recipe, history):
        right = x.double() @ weight.double().T
        product = stored(x, recipe, history).double() @ stored(weight, recipe).double().T
        return float(((product - right).norm(dim=1) / right.norm(dim=1)).max())

    def measured(x, history, most, case, weight):
        errors = [worst(x, weight, recipe, history) for recipe in RECIPES]
        best = next(recipe for recipe, error in zip(RECIPES, errors, strict=True) if error <= most)
        chosen(best, errors, x, history, most, case, weight)

    for seed in range(4):
        x, weight = drawn(7, 64, seed=10 + seed), drawn(9, 64, seed=20 + seed) * 10.0 ** drawn(9, 1, seed=seed)
        top = x.abs().max().item()
        for most in (0.3, 0.12, 0.02):
            measured(x, (top / (1, 3)[seed % 2],), most, f"matrices of seed {seed}", weight)
            measured(x * 10.0 ** -torch.arange(7.0)[:, None], (top,), most, f"tokens of all sizes, seed {seed}", weight)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "choose_recipe",
    "A loop over `RECIPES` goes through the names, cheapest first. Both x and weight are stored in the recipe; only x has a history.",
    "Convert to float64 before each product. `.norm(dim=1)` has one norm per token. Divide token by token, and only then take the maximum.",
)
debrief(
    "choose_recipe",
    """There is no best recipe, only one that fits the tensor. With three mantissa bits every token has about the same error,
    whatever the scale, as long as no element is clipped or subnormal. The scale decides for how many tokens that holds. One
    scale per tensor suits its largest tokens and may make small ones subnormal; one per 32 neighbours adapts to each.

    An error over all tokens together hides this, because the largest tokens dominate the norm of the whole matrix. This is
    why the worst token counts here.""",
    parts=("",),
)
predict(
    "fp8_error",
    "The elements of x and weight are normally distributed, 256 per row. By how many per cent is the product in mxfp8 off, for the median token?",
    unit="%",
)

normal, projection = drawn(64, 256, seed=3), 0.02 * drawn(64, 256, seed=4)
CASES = {
    "plain tokens": normal,
    "some columns 30 times as large": normal * torch.where(torch.arange(256) % 64 == 0, 30.0, 1.0),
    "tokens from 1 down to 1e-5": normal * 10.0 ** -torch.linspace(0, 5, 64)[:, None],
}
rows = []
for case, x in CASES.items():
    right = x.double() @ projection.double().T
    row = [case]
    for recipe in ("nvfp4", "delayed", "current", "mxfp8", "bfloat16"):
        history = (normal.abs().max().item(),)  # of earlier, plain tokens
        product = stored(x, recipe, history).double() @ stored(projection, recipe).double().T
        errors = 100 * (product - right).norm(dim=1) / right.norm(dim=1)
        row.append(f"{errors.median():.2g} / {errors.max():.2g}")
        if (case, recipe) == ("plain tokens", "mxfp8"):
            mxfp8_error = errors.median().item()
    rows.append(row)
show.against_prediction("fp8_error", round(mxfp8_error, 2), unit="%", source="measured here, emulated")
with reveal("fp8_error"):
    show.table(rows, ["error in %: median / worst token", "nvfp4", "delayed", "current", "mxfp8", "bfloat16"])
    print("delayed: the scale comes from the amax of plain tokens, so larger columns are clipped")

from threeloops.lab.drawings.measured import products

predict(
    "fp8_speed",
    "An H100's peak in FP8 is twice that in BF16. NVIDIA timed x @ W on it with 512 rows in x and a W of 4,096 × 4,096. x "
    "comes in BF16 and is quantized first; W is in FP8 already. How many times faster is FP8?",
    unit="×",
)
speedups = {side: products.fp8_speedups("H100 SXM", side) for side in products.SIDES}
show.against_prediction(
    "fp8_speed", round(speedups[4096][512], 2), unit="×", source=products.product_source("H100 SXM")
)
with reveal("fp8_speed"):
    explore(products.draw_fp8, device=list(products.FP8_DEVICES))
    bf16, fp8 = (products.product_seconds("H100 SXM", 8192, 8192, dtype)[16384] for dtype in ("bfloat16", "fp8"))
    flops = 2 * 16384 * 8192**2
    print(
        "Quantizing is a kernel of its own. It has to start, read BF16 and write FP8, which pays only beside a large product. "
        f"Even 16,384 rows with a W of 8,192 × 8,192 become {bf16 / fp8:.2f} times as fast: FP8 reaches "
        f"{100 * flops / fp8 / 1978.9e12:.0f}% of its peak, BF16 {100 * flops / bf16 / 989.4e12:.0f}% of the lower one."
    )

# %% [markdown]
# ## 8 · Train with your functions
#
# The next cell trains a small network with everything you have written. `choose_recipe` picks a recipe for its images, and
# `next_delayed` scales them. `encode` and `decode` round them to float8_e4m3fn, gradients of activations to float8_e5m2, and
# those of weights to float16. `scaled_step` removes the loss scale, `master_step` moves float32 masters, and `lost` counts
# what would be lost without them. PyTorch's casts, `GradScaler` and `SGD` run beside them, and stand in for what you have not
# written. The cell takes seconds; each training stops after 20.

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.precision.fp8 import Recipe, ScaleState, after_tensor

RATE, MOMENTUM, START, PER_EPOCH = 2.0**-7, 0.875, 2.0**24, 22
FORMATS, PIXELS, one = {f.name: f for f in (FLOAT16, E4M3FN, E5M2)}, IMAGES.flatten(1), torch.ones(1, 32)
order = torch.cat(
    [TRAINING[torch.randperm(1437, generator=torch.Generator().manual_seed(e))[:1408]] for e in range(27)]
)
BATCHES = [(PIXELS[batch], LABELS[batch]) for batch in order.split(64)]
WEIGHTS = [drawn(32, 64, seed=6) / 14, drawn(10, 32, seed=7) / 10]


class PyTorchSteps:
    """PyTorch's SGD on float32 parameters and its loss scaler. The weights for the products are bfloat16 copies."""

    def __init__(self, low=True, masters=True):
        self.low, self.masters = low, masters  # False: float32 throughout, and weights that are stored in bfloat16
        self.parameters = [nn.Parameter(weight.clone()) for weight in WEIGHTS]
        self.optimizer = torch.optim.SGD(self.parameters, lr=RATE, momentum=MOMENTUM)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=START, growth_interval=100, enabled=low)
        self.scaler.scale(torch.zeros(()))  # lets it make its scale

    @property
    def scale(self):
        return self.scaler.get_scale()

    @property
    def weights(self):
        return [p.detach().bfloat16() if self.low else p.detach() for p in self.parameters]

    def step(self, gradients):
        before = self.scale
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.float()
        self.scaler.unscale_(self.optimizer)
        for parameter in self.parameters if self.low else ():
            parameter.grad = parameter.grad.bfloat16().float()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        for parameter in () if self.masters else self.parameters:
            parameter.data = parameter.data.bfloat16().float()
        return self.scale < before


class YourSteps:
    """Your loss scaler, your masters, and your count of the updates that bfloat16 weights alone would lose."""

    def __init__(self):
        self.scaler, self.masters = Scaler(START, interval=100), [Masters(w, torch.zeros_like(w)) for w in WEIGHTS]
        self.weights, self.lost = [w.bfloat16() for w in WEIGHTS], []

    @property
    def scale(self):
        return self.scaler.scale

    def step(self, gradients):
        zeros = [torch.zeros(g.shape) for g in gradients]
        self.scaler, down, skipped = scaled_step(self.scaler, zeros, gradients, 1.0)  # from 0: minus the gradients
        if not skipped:
            pairs = zip(self.masters, down, strict=True)
            both = [master_step(m, -g.bfloat16(), RATE, MOMENTUM, torch.bfloat16) for m, g in pairs]
            self.masters = [masters for masters, _ in both]
            if have["lost"]:
                pairs = zip(self.weights, self.masters, strict=True)
                self.lost.append([lost(w, -RATE * m.momentum).float().mean().item() for w, m in pairs])
            self.weights = [weights for _, weights in both]
        return skipped


def round_by_you(x, name):
    return torch.from_numpy(decode(encode(x.double().numpy(), FORMATS[name]), FORMATS[name])).float()


def rescale_by_you(state, amax):
    return next_delayed(state or Delayed(), amax, 448.0, 0, 16)


def rescale(state, amax):
    return after_tensor(state or ScaleState(), amax, E4, Recipe(history_length=16))


def written(call):
    try:
        call()
    except NotImplementedError:
        return False
    except Exception:  # the training below says so
        return True
    return True


have = {
    "decode and encode": written(lambda: round_by_you(one, "float16")),
    "scaled_step": written(lambda: scaled_step(Scaler(1.0), [one], [one], 1.0)),
    "master_step": written(lambda: master_step(Masters(one, one), one.half(), 1.0, 0.0, torch.float16)),
    "lost": written(lambda: lost(one.half(), one)),
    "next_delayed": written(lambda: rescale_by_you(None, 1.0)),
    "choose_recipe": written(lambda: choose_recipe(one, one, (), 1.0)),
}
both_steps = have["scaled_step"] and have["master_step"]  # one is not used without the other
missing = [name for name, there in have.items() if not there or (name.endswith("_step") and not both_steps)]
runs = {
    "float32": formats.train(BATCHES, PyTorchSteps(low=False), rescale, recipe="float32"),
    "PyTorch's pieces": formats.train(BATCHES, PyTorchSteps(), rescale),
}
try:
    steps = YourSteps() if both_steps else PyTorchSteps()
    recipe = choose_recipe(BATCHES[0][0], WEIGHTS[0], (), 0.1) if have["choose_recipe"] else "delayed"
    rescaled = rescale_by_you if have["next_delayed"] else rescale
    rounded = round_by_you if have["decode and encode"] else formats.cast
    runs["your pieces"] = formats.train(BATCHES, steps, rescaled, rounded, recipe)
except Exception as error:
    print(f"Your pieces stopped with {type(error).__name__}: {error}. Look at the tests that fail.")
runs["no masters"] = formats.train(BATCHES, PyTorchSteps(masters=False), rescale)
show.figure(formats.draw_training(runs, [*runs][-2], PER_EPOCH))
if missing:
    print(f"PyTorch stands in for {', '.join(missing)}. Run this cell again when you have written more.")
if len(missing) < len(have) and "your pieces" in runs:
    pairs = enumerate(zip(runs["your pieces"].losses, runs["PyTorch's pieces"].losses, strict=False))
    apart = next(
        (f"first differs from PyTorch's in step {n}, {a:.7g} and {b:.7g}" for n, (a, b) in pairs if a != b), ""
    )
    print(
        f"Your loss {apart or 'equals PyTorch’s in every step, to the last bit'}; the recipe for the images is {recipe}."
    )
    if gone := getattr(steps, "lost", []):
        print(
            f"In the last epoch, {100 * np.mean(gone[-PER_EPOCH:]):.0f}% of the updates would be lost without masters."
        )

# %% [markdown]
# ## In practice
#
# In PyTorch, `torch.autocast` with bfloat16 keeps the parameters in float32, so they are their own masters; with float16,
# `torch.amp.GradScaler` is added. The last cell runs a step of both.
#
# | | how it is chosen |
# |---|---|
# | [Transformer Engine](https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/api/common.html) | recipes `DelayedScaling`, `Float8CurrentScaling`, `Float8BlockScaling`, `MXFP8BlockScaling`, `NVFP4BlockScaling`; by default (2026) MXFP8 where the GPU has it, else current scaling from compute capability 12.0 on, else delayed scaling |
# | [torchao](https://github.com/pytorch/ao/issues/1680) | `convert_to_float8_training`, with current scales per tensor or row; delayed scaling was removed in 2025 |
# | [Megatron-LM](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/transformer/transformer_config.py) | `--fp8-format e4m3 --fp8-recipe blockwise`, `delayed` (by default), `tensorwise` (current scaling), `mxfp8`; `--fp4-format e2m1` |
#
# DeepSeek-V3 (2024) was trained with float8_e4m3fn for all three products of a linear layer, with current scales per 1 × 128
# tile and 128 × 128 block. In 2025 NVIDIA described pretraining in MXFP8 ([2506.08027](https://arxiv.org/abs/2506.08027)) and
# NVFP4 ([2509.25149](https://arxiv.org/abs/2509.25149)). Scales alone are not enough for NVFP4: it also took random Hadamard
# transforms, stochastic rounding of gradients, one weight scale per 16 × 16 block, and some layers in higher precision.
#
# ## What to remember
#
# - The exponent gives range and the mantissa precision. float16 runs out of range first, bfloat16 out of precision.
# - Round once. Codes count magnitudes, so a carry into the exponent gives the right code.
# - Underflow gives zero, silently. Overflow gives infinity, which a loss scaler detects.
# - Updates below half a spacing are lost, so keep float32 masters.
# - FP8 needs scales: from the tensor itself, or from small blocks of it if magnitudes vary.
#
# The deep dives (`05_mixed_precision_dives.ipynb`) count memory, and show what autocast casts.
#
# ## Reflection
#
# A colleague trains in float16 with a loss scaler. After 20,000 good steps the scale, at 2¹⁵ for hours, falls by half at
# every step and reaches 2⁻²⁰. Nothing in the code has changed. Name three possible causes. How would you tell them apart,
# and which would have happened in bfloat16 as well?

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# First, NaN or infinity in a batch or in a weight: then no scale helps. I would look for the first tensor that is not finite.
# bfloat16 would have NaN as well, without a scaler to skip the step. Second, the activations of the forward pass overflow
# float16: the loss itself is infinite, whatever its scale. I would record the amax per layer; bfloat16 has the range and would
# go on. Third, the training diverges, after a bad batch or too high a learning rate, and gradients really grow: the log of the
# unscaled norm shows it some steps before. bfloat16 would have diverged too. For all three I would stop at a smallest scale
# instead of skipping on, and go back to the last checkpoint.

# %% tags=["demo"] jupyter={"source_hidden": true}
layer, images = nn.Linear(64, 10), IMAGES[:64].flatten(1)
optimizer, rows = torch.optim.SGD(layer.parameters(), lr=0.1), []
for low in (torch.bfloat16, torch.float16):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, enabled=low is torch.float16)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=low):
        logits = layer(images)
        loss = functional.cross_entropy(logits, LABELS[:64])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    rows.append([low, layer.weight.dtype, logits.dtype, layer.weight.grad.dtype, scaler.get_scale()])
show.table(
    [[str(c).removeprefix("torch.") for c in row] for row in rows],
    ["autocast", "weights", "product", "gradients", "scale"],
)
term("FP8")
term("amax")
term("loss scaling")
calibration()
