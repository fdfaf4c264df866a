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
#     minutes: 180
#     withholds: [threeloops.inner.precision, threeloops.inner.interpreter.formats]
# ---

# %% [markdown]
# # How few bits can you train with?
#
# Halve the bits of a number and everything that moves it takes half the time: memory, caches, links, and the tensor
# cores themselves, whose rate doubles. An H100's tensor cores do 495 TFLOP/s in TF32, 989 in bfloat16 and 1,979 in FP8 (dense). Few
# kernels that you will ever write gain a factor of four. This one is there for the asking, if the training survives.
#
# Every format spends its bits on two different things. The **exponent** buys range: how small and how large a number can
# be before it is lost. The **mantissa** buys precision: how close a number is to its neighbours.

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import re
from dataclasses import dataclass, replace

import numpy as np
import torch
from threeloops.lab import audit, check, explore, hint, inout, predict, progress, show

torch.set_num_threads(1)  # the tensors are small: a second thread would spend its time waiting
SMALLEST_SCALE = 2.0**-126  # the smallest normal float32 number

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.precision.formats import FLOAT_FORMATS
from threeloops.lab import figure, palette

fig, (left, right) = figure(1, 2, width=12.5, height=3.9, width_ratios=[5, 6])
for row, format in enumerate(FLOAT_FORMATS.values()):
    kinds = [palette.ink] + [palette.orange] * format.exponent_bits + [palette.blue] * format.mantissa_bits
    for bit, colour in enumerate(kinds):
        left.barh(row, 0.86, left=bit, height=0.62, color=colour)
    ends = np.log10([format.smallest_subnormal, format.smallest_normal, format.largest])
    right.barh(row, ends[1] - ends[0], left=ends[0], height=0.62, color=palette.sky, alpha=0.45)
    right.barh(row, ends[2] - ends[1], left=ends[1], height=0.62, color=palette.orange)
    right.text(
        ends[2] + 1.2 if ends[2] < 10 else ends[2] + 1.2,
        row,
        f"{-np.log10(format.epsilon / 2):.1f} digits",
        va="center",
        fontsize=10,
        color=palette.blue,
    )
for axes in (left, right):
    axes.set_yticks(range(len(FLOAT_FORMATS)), list(FLOAT_FORMATS) if axes is left else [])
    axes.set_ylim(5.6, -0.6)
    axes.grid(axis="y", visible=False)
left.set(xlim=(-0.3, 32), xlabel="bit, highest first", title="Sign, exponent and mantissa")
left.grid(visible=False)
right.set(xlim=(-47, 53), xlabel="magnitude, powers of ten", title="What the exponent reaches; pale: subnormal")
right.set_xticks(range(-40, 41, 10))
show.figure(fig)

# %% [markdown]
# float16 and bfloat16 both have sixteen bits and spend them differently: float16 is eight times as precise, and
# bfloat16 reaches as far as float32. That one choice decides what goes wrong in training:
#
# - too little **range**, and gradients become zero, or infinite: *loss scaling* (exercise 2), *FP8 scaling* (exercise 4);
# - too little **precision**, and a weight no longer feels its updates: *master weights* (exercise 3).
#
# To reason about either you must be able to round a number by hand. That comes first. All of it runs on a CPU: what low
# precision does to the *numbers* can be emulated exactly, bit by bit. What it does to the *clock* cannot, and this lab
# will not pretend to.

# %% tags=["demo"]
predict("bf16_one", "By how much is the next bfloat16 number larger than 1?", guess=None)
predict(
    "stuck",
    "A bfloat16 weight is 1. You add 1/4096 to it, four thousand and ninety-six times. What is it then?",
    guess=None,
)

# %% [markdown]
# ## 1 · A number, in any format
#
# A code of *1 + e + m* bits holds, from the highest bit down: one bit for the sign, *e* bits of **exponent field** E, *m*
# bits of **mantissa** M. With the bias *b* = 2^(e − 1) − 1 it means
#
# | exponent field | value |
# |---|---|
# | E > 0: *normal* | ± (1 + M / 2^m) · 2^(E − b) |
# | E = 0: *subnormal* | ± (M / 2^m) · 2^(1 − b) |
#
# The highest exponent field, all ones, depends on the format. In IEEE's (`infinities=True`) it is not a number at all:
# M = 0 is ±infinity, any other M is NaN. FP8 cannot afford to throw so many codes away. In float8_e4m3fn
# (`infinities=False`) it holds ordinary numbers like any other, and only the one code with E and M all ones is NaN.
#
# Read a code without its sign as an integer, and something remarkable happens: the numbers ascend. The next larger
# number is the next larger code, also across the seam between subnormal and normal, and across every power of two. In
# IEEE's formats the code after the largest finite number is infinity.

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.precision.formats import FloatFormat

tiny = FloatFormat("1 + 3 + 2 bits", 3, 2)
fig, (top, bottom) = figure(2, 1, width=12.5, height=3.6, height_ratios=[3, 2])
numbers = tiny.magnitudes()
for code, value in enumerate(numbers):
    colour = palette.sky if value < tiny.smallest_normal else palette.orange
    top.plot([value] * 2, [0, 1], color=colour, lw=2)
    if value >= 1 or code % 4 == 0:
        top.text(value, 1.12, f"{code:05b}", rotation=60, fontsize=9, ha="left", va="bottom", color=palette.ink)
top.set(
    xlim=(-0.2, 15),
    ylim=(0, 2.2),
    yticks=[],
    title="A toy format, 1 + 3 + 2 bits: all its positive numbers, and their codes",
)
bottom.step(numbers, tiny.spacing(numbers), where="post", color=palette.blue)
bottom.set(xlim=(-0.2, 15), xlabel="value", ylabel="to the next", ylim=(0, 2.3))
show.figure(fig)

# %% [markdown]
# Not quite half of them lie below 1, and the distance between neighbours doubles at each power of two, so the *relative*
# distance stays about the same. Next to zero the distance itself stops shrinking: the subnormal numbers fill the gap evenly, and pay
# with their precision.
#
# ### Exercise 1 (25 points)
#
# `decode(codes: np.ndarray, format: Format) -> np.ndarray`: integer codes of any shape → their exact values, float64.
#
# `encode(values: np.ndarray, format: Format) -> np.ndarray`: float64 of any shape → codes, int64, of the same shape.
#
# - **Nearest, ties to even.** The code of the nearest number; of two equally near, the one whose code is even. Rounded
#   *once*, from float64.
# - **Overflow.** Round as if the exponent had no end. If the result exceeds the largest finite number it becomes infinity
#   (`infinities=True`), or the largest finite number (`infinities=False`). Infinities are treated likewise.
# - **Signs** are kept, also of zeros: −0.0 is the code with only the sign bit set. Whatever its sign, NaN becomes the
#   *positive* code whose exponent and mantissa are all ones.
#
# Formats have 2 to 8 exponent bits and 1 to 23 mantissa bits; float64 holds every number that you need on the way.
# Decoding a code that is negative or has more bits than the format raises `ValueError` that names the code.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_formats", "locked": true, "schema_version": 3, "solution": false, "task": false}
@dataclass(frozen=True)
class Format:
    """1 sign bit, then exponent, then mantissa."""

    exponent_bits: int
    mantissa_bits: int
    infinities: bool = True  # the highest exponent holds infinity and NaN; otherwise all ones is the only NaN


FLOAT16 = Format(5, 10)
BFLOAT16 = Format(8, 7)
E5M2 = Format(5, 2)
E4M3FN = Format(4, 3, infinities=False)


# %% nbgrader={"grade": false, "grade_id": "formats", "locked": false, "schema_version": 3, "solution": true, "task": false}
def decode(codes: np.ndarray, format: Format) -> np.ndarray:
    """The exact values of codes, float64."""
    ### BEGIN SOLUTION
    m, bits = format.mantissa_bits, format.exponent_bits + format.mantissa_bits
    codes = np.asarray(codes, np.int64)
    for code in codes[(codes < 0) | (codes >> (bits + 1) > 0)]:
        raise ValueError(f"code = {code}: expected 0 to {2 ** (bits + 1) - 1}")
    magnitude = codes & (2**bits - 1)
    field, mantissa = magnitude >> m, magnitude & (2**m - 1)
    one = np.where(field > 0, 2**m, 0)
    values = np.ldexp((one + mantissa).astype(np.float64), np.maximum(field, 1) - bias(format) - m)
    if format.infinities:
        values = np.where(field == 2**format.exponent_bits - 1, np.where(mantissa == 0, np.inf, np.nan), values)
    else:
        values = np.where(magnitude == 2**bits - 1, np.nan, values)
    return np.where(codes >> bits == 1, -values, values)
    ### END SOLUTION


def encode(values: np.ndarray, format: Format) -> np.ndarray:
    """The codes of the nearest numbers, ties to even, int64."""
    ### BEGIN SOLUTION
    m, bits = format.mantissa_bits, format.exponent_bits + format.mantissa_bits
    values = np.asarray(values, np.float64)
    magnitude = np.where(np.isfinite(values), np.abs(values), 0.0)
    smallest = 1 - bias(format)
    exponent = np.where(magnitude > 0, np.maximum(np.frexp(magnitude)[1] - 1, smallest), smallest)
    steps = np.rint(np.ldexp(magnitude, m - exponent)).astype(np.int64)
    codes = (exponent - smallest).astype(np.int64) * 2**m + steps  # a carry runs into the exponent, as it should
    largest = 2**bits - 2**m - 1 if format.infinities else 2**bits - 2
    overflow = largest + 1 if format.infinities else largest
    codes = np.where((codes > largest) | np.isinf(values), overflow, codes)
    codes = codes + np.where(np.signbit(values), 2**bits, 0)
    return np.where(np.isnan(values), 2**bits - 1, codes)


def bias(format: Format) -> int:
    return 2 ** (format.exponent_bits - 1) - 1
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "formats",
    "Decode first: three fields by shifts and masks, `np.ldexp(significand, exponent)` for the power of two, `np.where` for the special codes. Count the significand in units of the last mantissa bit, and it is an integer.",
    "To encode, ask how far apart the format's numbers lie around |x|: 2^(k − m), where k is the exponent of x, `np.frexp(x)[1] - 1`, but never below 1 − b. Divide by that distance and round to an integer: `np.rint` rounds ties to even.",
    "Now use what the picture shows: codes count the numbers. Below the smallest normal exponent the integer is the code itself. Each exponent above adds 2^m to it: code = (k − (1 − b)) · 2^m + integer. If rounding carried into the next power of two, this sum is still right.",
)

# %% nbgrader={"grade": true, "grade_id": "formats_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("formats", "encode and decode four formats"):
    for name, format, code, value in (
        ("float16", FLOAT16, 0x3C00, 1.0),
        ("float16", FLOAT16, 0x7BFF, 65504.0),
        ("float16", FLOAT16, 0x0001, 2.0**-24),
        ("float16", FLOAT16, 0xC0B1, -2.345703125),
        ("bfloat16", BFLOAT16, 0x3F81, 1.0078125),
        ("float8_e4m3fn", E4M3FN, 0x7E, 448.0),
        ("float8_e4m3fn", E4M3FN, 0x07, 7 * 2.0**-9),
        ("float8_e5m2", E5M2, 0xFB, -57344.0),
    ):
        check.close(
            decode(np.array([code]), format),
            [value],
            rtol=0,
            what=f"decode({code:#06x}) in {name}",
            hint="a subnormal number (E = 0) has no leading 1, and the exponent 1 − b; e4m3fn's highest exponent holds ordinary numbers",
        )
        check.equal(
            encode(np.array([value]), format),
            np.array([code]),
            what=f"encode({value}) in {name}",
            hint="the integer of units in the last place, plus 2^m for each exponent above the smallest",
        )
    check.equal(
        decode(np.array([0x7C00, 0xFC00]), FLOAT16).tolist(),
        [float("inf"), float("-inf")],
        what="decode of float16's infinities",
    )
    check.true(
        bool(np.isnan(decode(np.array([0x7F]), E4M3FN))[0]) and bool(np.isnan(decode(np.array([0x7C01]), FLOAT16))[0]),
        "decode(0x7F) in float8_e4m3fn and decode(0x7C01) in float16 are NaN",
    )
    check.equal(
        encode(np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, -(1 + 2.0**-8)]), BFLOAT16),
        np.array([0x3F80, 0x3F82, 0xBF80]),
        what="encode of ties in bfloat16",
        hint="half-way between two numbers the even code wins: once down, once up",
    )
    check.equal(
        encode(np.array([[70000.0, -np.inf], [np.nan, 1e-9]]), FLOAT16),
        np.array([[0x7C00, 0xFC00], [0x7FFF, 0]]),
        what="encode of 70000, −infinity, NaN and 1e-9 in float16",
    )
    check.equal(
        encode(np.array([-0.0, 65512.0, -65519.0]), FLOAT16),
        np.array([0x8000, 0x7BFF, 0xFBFF]),
        what="encode of −0.0, 65512 and −65519 in float16",
        hint="−0.0 is negative too: np.signbit, not x < 0; and round before you ask whether it is too large: what rounds to 65504, the last number before overflow, is 65504",
    )
    check.equal(
        encode(np.array([1e9, -np.inf, np.nan, -np.nan]), E4M3FN),
        np.array([0x7E, 0xFE, 0x7F, 0x7F]),
        what="encode of 1e9, −infinity, NaN and NaN with a sign in float8_e4m3fn",
        hint="without infinities what is too large becomes the largest finite number",
    )
    check.raises(ValueError, decode, np.array([3, 256]), E5M2, names="256")
    ### BEGIN HIDDEN TESTS
    from bisect import bisect_left
    from fractions import Fraction

    def ladder(format):
        """Every finite magnitude, from the definition."""
        fields = 2**format.exponent_bits - (1 if format.infinities else 0)
        b, count = 2 ** (format.exponent_bits - 1) - 1, 2**format.mantissa_bits
        rungs = [(min(f, 1) + m / count) * 2.0 ** (max(f, 1) - b) for f in range(fields) for m in range(count)]
        return rungs if format.infinities else rungs[:-1]

    def nearest(value, format, rungs):
        sign = 2 ** (format.exponent_bits + format.mantissa_bits)
        signed = sign if np.signbit(value) else 0
        magnitude = abs(float(value))
        above = bisect_left(rungs, magnitude)
        if above == len(rungs):
            tie = rungs[-1] + (rungs[-1] - rungs[-2]) / 2
            beyond = magnitude > tie or (magnitude == tie and above % 2 == 0)
            return signed + (above if beyond and format.infinities else above - 1)
        if rungs[above] == magnitude:
            return signed + above
        exact = Fraction(magnitude)
        up, down = Fraction(rungs[above]) - exact, exact - Fraction(rungs[above - 1])
        return signed + (above if up < down or (up == down and above % 2 == 0) else above - 1)

    UNUSUAL = {"e3m4": Format(3, 4), "e2m3fn": Format(2, 3, False), "e2m1fn": Format(2, 1, False), "e6m9": Format(6, 9)}
    KNOWN = {"float16": FLOAT16, "bfloat16": BFLOAT16, "float8_e5m2": E5M2, "float8_e4m3fn": E4M3FN}
    for name, format in (KNOWN | UNUSUAL).items():
        rungs = ladder(format)
        sign = 2 ** (format.exponent_bits + format.mantissa_bits)
        codes = np.arange(len(rungs))
        check.close(decode(codes, format), np.array(rungs), rtol=0, what=f"decode of every finite code of {name}")
        check.equal(encode(np.array(rungs), format), codes, what=f"encode of every finite number of {name}")
        check.equal(
            encode(-np.array(rungs), format), codes + sign, what=f"encode of every negative number of {name}",
            hint="−0.0 is negative too: np.signbit, not x < 0",
        )  # fmt: skip
        check.true(
            bool(np.signbit(decode(np.array([sign]), format))[0]), f"decode({sign:#x}) in {name} is +0.0: expected −0.0"
        )
        rng = check.rng(format.mantissa_bits)
        picked = rng.integers(0, len(rungs) - 1, 150)
        middle = np.array([(rungs[i] + rungs[i + 1]) / 2 for i in picked])
        spread = rng.uniform(-1.2, 1.2, 150) * rungs[-1] * 2.0 ** -rng.integers(0, 12, 150).astype(float)
        top = rungs[-1] + (rungs[-1] - rungs[-2]) * np.array([0.25, 0.499, 0.5, 0.501, 1.0, 2.0])
        values = np.concatenate(
            [middle, -middle, np.nextafter(middle, 1e300), np.nextafter(middle, 0), spread, top, -top]
        )
        expected = np.array([nearest(v, format, rungs) for v in values])
        got = encode(values, format)
        check.shape(got, values.shape, what=f"encode in {name}")
        wrong = np.flatnonzero(np.asarray(got) != expected)
        check.true(
            wrong.size == 0,
            ""
            if not wrong.size
            else f"encode({values[wrong[0]]!r}) in {name} is {got[wrong[0]]}: expected {expected[wrong[0]]}, and "
            f"{wrong.size} of {values.size} values are off; usually: ties, a carry into the exponent, the last number before overflow, or rounding twice by way of float32",
        )
    single = check.rng(7).normal(size=300).astype(np.float32) * np.float32(2.0) ** check.rng(8).integers(-140, 120, 300)
    check.equal(
        encode(single.astype(np.float64), Format(8, 23)),
        single.astype(np.float32).view(np.uint32).astype(np.int64),
        what="encode of float32 numbers in Format(8, 23)",
    )
    check.equal(encode(np.zeros((2, 0, 3)), E5M2).shape, (2, 0, 3), what="shape of encode of an empty array")
    check.raises(ValueError, decode, np.array([[-1]]), FLOAT16, names="-1")
    ### END HIDDEN TESTS

# %% [markdown]
# ### Explore
#
# Choose a format, a place and a magnification. The ticks are all the numbers that there are. The diamond is a real
# number, and the arrows say where each kind of rounding takes it. Three things worth finding: the first whole number
# that bfloat16 does not have; what becomes of 0.001 in float8_e4m3fn; and how far apart float16's neighbours are at
# 60,000.

# %% tags=["demo"] jupyter={"source_hidden": true}
WINDOW = 9  # numbers to either side


def draw_number_line(format, power_of_two, fraction):
    """The numbers of a format around fraction · 2^power_of_two, and where rounding takes that number."""
    shape = FLOAT_FORMATS[format]
    value = fraction * 2.0**power_of_two
    fig, axes = figure(width=11, height=3.3)
    here = int(shape.encode(min(value, shape.largest), "toward-zero"))
    codes = np.arange(max(0, here - WINDOW), min(shape.largest_code, here + WINDOW) + 1)
    numbers = shape.decode(codes)
    origin, spacing = float(shape.decode(here)), float(shape.spacing(min(value, shape.largest)))

    def place(number):
        return (number - origin) / spacing

    colours = np.where(numbers < shape.smallest_normal, palette.sky, palette.orange)
    axes.vlines(place(numbers), 0, np.where(codes % 2 == 0, 1.0, 0.6), colors=colours, lw=2)
    nearest, down = float(shape.rounded(value)), float(shape.rounded(value, "toward-zero"))
    at = place(value)
    low, high = place(numbers[0]), place(numbers[-1])
    margin = 0.04 * (high - low)
    axes.set(xlim=(low - margin, high + margin), ylim=(0, 1.9), yticks=[])
    if at > high + margin:
        arrow = {"arrowstyle": "-|>", "color": palette.ink, "lw": 2.2}
        axes.annotate("", (high + margin, 1.5), (high - 4 * margin, 1.5), arrowprops=arrow)
    else:
        axes.plot(at, 1.5, "D", color=palette.ink, ms=8, zorder=4)
    if value > shape.largest:
        says = f"above the largest number, {shape.largest:,.6g}: nearest {nearest:g}, toward zero {down:g}"
    else:
        up = float(shape.decode(min(here + 1, shape.largest_code)))
        share = (value - down) / (up - down) if up > down else 0.0
        apart = 0.12 if nearest == down else 0.0  # two arrows to one number stand side by side
        for target, colour, dashes, shift in (
            (nearest, palette.blue, "-", -apart),
            (down, palette.vermillion, "--", apart),
        ):
            height = 1.03 if int(shape.encode(target)) % 2 == 0 else 0.63
            style = {"arrowstyle": "->", "color": colour, "lw": 1.8, "ls": dashes}
            axes.annotate("", (place(target) + shift, height), (at + shift, 1.44), arrowprops=style)
        lost = abs(nearest - value) / value if value else 0.0
        says = (
            f"nearest {nearest:.9g} (blue), toward zero {down:.9g} (red); stochastic: up with probability {share:.2f}; "
            f"relative error {lost:.2g}"
        )
    axes.set_title(f"{format}: {value:.9g}\n{says}", fontsize=11)
    axes.set_xlabel(f"distance from {origin:.9g}, in units of {spacing:.3g}; tall ticks have even codes")
    axes.grid(visible=False)
    return fig


explore(
    draw_number_line,
    format=["bfloat16", "float16", "tf32", "float8_e4m3fn", "float8_e5m2", "float32"],
    power_of_two=(-30, 20, 1, 8),
    fraction=(1.0, 2.0, 0.001, 1.004),
)

# %% [markdown]
# ### Measure it
#
# The first prediction, and the claim that float16 is more precise than float32 near 1.

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.precision.formats import BFLOAT16 as BF16
from threeloops.inner.precision.formats import FLOAT16 as FP16
from threeloops.inner.precision.formats import FLOAT32 as FP32

show.against_prediction("bf16_one", BF16.epsilon, source="model")
show.table(
    [
        [
            f.name,
            f"{f.epsilon:.3g}",
            f"{f.smallest_subnormal:.3g}",
            f"{f.smallest_normal:.3g}",
            f"{f.largest:.4g}",
            f"{int(2**f.mantissa_bits * 2):,}",
        ]
        for f in FLOAT_FORMATS.values()
    ],
    ["format", "from 1 to the next", "smallest", "smallest normal", "largest", "whole numbers up to"],
)
audit(
    "prec-1",
    FP16.epsilon / FP32.epsilon,
    "× as far from 1 to its neighbour",
    "model",
    "corrected",
    how="2⁻¹⁰ against 2⁻²³: float16 is the coarser everywhere, near 1 by a factor of 8,192. Every float16 number is also a float32 number",
)

# %% [markdown]
# ## 2 · Gradients that become zero
#
# Weights and activations stay within two or three powers of ten of 1. Gradients do not: a loss that is a mean over a batch
# hands each element a share of 1/batch, and every layer on the way back multiplies by something small. Here are the gradients of a small
# convolutional network on 8 × 8 images of handwritten digits, on the way back through it, before and after a training of
# some ten seconds.

# %% tags=["demo"] jupyter={"source_hidden": true}
import time

from threeloops.inner.precision.amp import LossScaler, ScalerState, stored_as
from torch import nn
from torch.nn import functional

with np.load("data/digits.npz") as stored:
    IMAGES = torch.from_numpy(stored["images"]).float()[:, None] / 16
    LABELS = torch.from_numpy(stored["labels"]).long()
SHUFFLED = torch.from_numpy(np.random.default_rng(0).permutation(len(LABELS)))
TRAINING, HELD_OUT = SHUFFLED[:1437], SHUFFLED[1437:]


class DigitsNetwork(nn.Module):
    """Two convolutions, two linear layers. What passes between them, and its gradient, is stored in `dtype`."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.hidden, self.output = nn.Linear(32 * 16, 64), nn.Linear(64, 10)
        self.stored = []  # activations, where their gradients are of interest

    def low(self, x):
        return stored_as(x, self.dtype)

    def keep(self, x):
        if x.requires_grad and self.stored is not None:
            x.retain_grad()
            self.stored.append(x)
        return x

    def through(self, operation, layer, x, **how):
        """A matrix product as a tensor core does it: low-precision inputs, float32 sums, a low-precision result."""
        return self.keep(self.low(operation(x, self.low(layer.weight), self.low(layer.bias), **how)))

    def forward(self, x):
        self.stored = []
        x = functional.relu(self.through(functional.conv2d, self.first, self.low(x), padding=1))
        x = functional.relu(self.through(functional.conv2d, self.second, x, padding=1))
        x = self.low(functional.avg_pool2d(x, 2)).flatten(1)
        x = functional.relu(self.through(functional.linear, self.hidden, x))
        return self.through(functional.linear, self.output, x)


def gradients_of(network, batch, scale=1.0):
    """Non-zero gradients of all activations and weights of one batch, |values| in one vector."""
    network.zero_grad()
    (functional.cross_entropy(network(IMAGES[batch]), LABELS[batch]) * scale).backward()
    found = [x.grad for x in network.stored] + [p.grad for p in network.parameters()]
    every = torch.cat([g.reshape(-1) for g in found]).abs()
    return every[every > 0]


def trained(dtype, *, epochs, rate, scaler=None, weights=None, seed=0):
    """A network after training with Adam, at a rate that falls epoch by epoch, its loss of every step, and the share of weight updates that were lost.

    `weights` rounds the weights after each step, for a training without masters: function(tensor, before) -> tensor.
    """
    torch.manual_seed(seed)
    network, shuffle = DigitsNetwork(dtype), np.random.default_rng(1)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    scaler = scaler or LossScaler(ScalerState(scale=1.0, growth_interval=10**9))
    losses, lost = [], []
    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - epoch / epochs)
        order = shuffle.permutation(TRAINING)
        for start in range(0, len(order) - 63, 64):
            batch = order[start : start + 64]
            optimizer.zero_grad()
            loss = functional.cross_entropy(network(IMAGES[batch]), LABELS[batch])
            scaler.scale(loss).backward()
            before = [p.detach().clone() for p in network.parameters()]
            scaler.step(optimizer)
            if weights is not None:
                with torch.no_grad():
                    moved = stuck = 0
                    for p, old in zip(network.parameters(), before, strict=True):
                        wanted = p != old
                        p.copy_(weights(p))
                        moved, stuck = moved + wanted.sum().item(), stuck + (wanted & (p == old)).sum().item()
                lost.append(stuck / max(moved, 1))
            losses.append(loss.item())
    return network, losses, lost


def accuracy(network):
    with torch.no_grad():
        return (network(IMAGES[HELD_OUT]).argmax(1) == LABELS[HELD_OUT]).float().mean().item()


EARLY = gradients_of(trained(torch.float32, epochs=0, rate=0)[0], TRAINING[:64])
NETWORK = trained(torch.float32, epochs=12, rate=1e-3)[0]
LATE = gradients_of(NETWORK, TRAINING[:64])
LIMITS = {
    f.name: (f.smallest_subnormal / 2, f.smallest_normal)
    for f in (FP16, FLOAT_FORMATS["float8_e5m2"], FLOAT_FORMATS["float8_e4m3fn"])
}
fig, axes = figure(width=12, height=3.9)
bins = np.linspace(-11.5, 0.5, 91)
for values, colour, name in ((EARLY, palette.orange, "before training"), (LATE, palette.blue, "after 12 epochs")):
    axes.hist(
        values.log10().numpy(), bins, color=colour, alpha=0.55, label=f"{name}: {len(values):,} non-zero gradients"
    )
top = axes.get_ylim()[1] * 1.35
axes.set_ylim(0, top)
for side, (name, (vanish, _)) in zip(("right", "right", "left"), LIMITS.items(), strict=True):
    at = np.log10(vanish)
    axes.axvline(at, color=palette.vermillion, lw=1.4, ls="--")
    shift = -0.1 if side == "right" else 0.1
    axes.text(at + shift, top * 0.93, f"zero in {name}", ha=side, fontsize=10, color=palette.vermillion)
axes.set(
    xlabel="|gradient|, powers of ten",
    ylabel="elements",
    title="Where gradients live; left of a red line they are rounded to zero",
)
axes.legend(loc="center left")
show.figure(fig)

# %% [markdown]
# Training spreads the gradients. The median falls to a third of what it was, and the left flank slides out of reach of
# float16; the largest ones even grow. But right of them there is still empty room, where float16 has all of its large
# numbers.
#
# So multiply: by a **scale**, before the backward pass,
# and divide after it. By how much? As much as the largest gradient bears, and nobody knows that beforehand.
#
# **Predict first.** What percentage of the blue gradients is zero in float16, unscaled? And in bfloat16?

# %% tags=["demo"]
predict(
    "fp16_zero", "What percentage of the trained network's gradients becomes zero in float16?", unit="%", guess=None
)
predict("bf16_zero", "And in bfloat16?", unit="%", guess=None)

# %% tags=["demo"] jupyter={"source_hidden": true}
SCALES = np.arange(-8, 41)
COLOURS = dict(zip(("float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"), palette[:4], strict=True))


def lost_at(format, values, power):
    """Shares in per cent of values that are zero and that overflow when they are scaled by 2^power and rounded."""
    scaled = values.double().numpy() * 2.0**power
    result = format.rounded(scaled)
    beyond = ~np.isfinite(result) | (scaled > format.largest * (1 + format.epsilon / 2))
    return 100 * (result == 0).mean(), 100 * beyond.mean()


SHARES = {name: np.array([lost_at(FLOAT_FORMATS[name], LATE, p) for p in SCALES]) for name in COLOURS}
unscaled = int(np.flatnonzero(SCALES == 0)[0])
fig, axes = figure(width=10, height=3.9)
for name in ("float16", "float8_e5m2", "float8_e4m3fn", "bfloat16"):
    zero, beyond = SHARES[name].T
    axes.plot(SCALES, zero, color=COLOURS[name], label=name, zorder=3)
    # float16 and e5m2 reach equally far: their dots fall between each other's
    axes.plot(SCALES, beyond, color=COLOURS[name], ls=(2.5 if name == "float8_e5m2" else 0, (1.5, 3.5)), lw=2.2)
axes.set(
    xlabel="loss scale, power of two",
    ylabel="% of the gradients",
    ylim=(-2, 102),
    title="Solid: rounded to zero. Dotted: too large",
)
axes.legend(loc="center", bbox_to_anchor=(0.56, 0.72))
show.figure(fig)


def first_power(holds):
    """The first scale at which something holds, as text."""
    where = np.flatnonzero(holds)
    if not where.size:
        return "none here"
    return f"2^{SCALES[where[0]]}" if where[0] else f"2^{SCALES[0]} or less"


show.table(
    [
        [name, *(first_power(s[:, 0] <= most) for most in (1, 0.01, 0)), first_power(s[:, 1] > 0)]
        for name, s in SHARES.items()
    ],
    ["format", "at most 1% zero from", "0.01% from", "none from", "first overflow"],
)
show.against_prediction(
    "fp16_zero", round(SHARES["float16"][unscaled, 0], 2), unit="%", source="measured here, emulated"
)
show.against_prediction(
    "bf16_zero", round(SHARES["bfloat16"][unscaled, 0], 2), unit="%", source="measured here, emulated"
)

# %% [markdown]
# Allow 1% of zeros, and each format has a window: from the scale at which no more than that is lost to the last at which
# nothing overflows. float16's is then 2¹ to 2¹⁷, and any scale in it will do. bfloat16's solid line lies on the axis: it
# needs no scale. e5m2's window is 2⁹ to 2¹⁷. e4m3fn has none: below 2¹⁶ more than 1% is zero, and from 2¹¹ on the largest
# overflows. One scale for all tensors will not do there, and exercise 4 gives each its own.

# %% tags=["demo"] jupyter={"source_hidden": true}
halves = FP16.rounded(np.array([1e-5, FP16.smallest_normal, FP16.smallest_subnormal, FP16.smallest_subnormal / 2]))
assert np.isfinite(halves).all() and halves[0] > 0 and halves[3] == 0
audit(
    "prec-2",
    FP16.smallest_subnormal / 2,
    "and below become zero",
    "CPU",
    "corrected",
    how=f"1e-5 is stored as {halves[0]:.4g}, a subnormal number: full precision ends at {FP16.smallest_normal:.3g}, the last number is {FP16.smallest_subnormal:.3g}. Underflow gives zero and never NaN; what gives NaN is overflow, by infinity − infinity or 0 · infinity. Of this network's gradients {SHARES['float16'][unscaled, 0]:.2g}% vanish",
)
errors = np.abs(BF16.rounded(LATE.double().numpy()) / LATE.double().numpy() - 1)
audit(
    "prec-3",
    round(SHARES["bfloat16"][unscaled, 0], 6),
    "% of gradients vanish in bfloat16, unscaled",
    "CPU",
    "holds",
    how=f"on the gradients of a small network; a scaler with bfloat16, as in one of the samples, has nothing to rescue: all it can still do is skip a step whose gradient is not finite. The price is precision: the mean relative error is {100 * errors.mean():.2g}%, against {100 * np.abs(FP16.rounded(LATE.double().numpy() * 2.0**14) / (LATE.double().numpy() * 2.0**14) - 1).mean():.2g}% in scaled float16, and it bites in the weights: exercise 3",
)

# %% [markdown]
# ### Exercise 2 (25 points)
#
# Since nobody knows the best scale, try. Go up every now and then. When it was too much, the gradients say so: one of
# them is infinite or NaN. Then throw the step away and go down.
#
# `next_scaler(scaler: Scaler, overflow: bool) -> Scaler` decides:
#
# | | `scale` | `clean` |
# |---|---|---|
# | overflow | scale × `backoff` | 0 |
# | no overflow, and this was the `interval`-th clean step in a row | scale × `growth`, unless that is more than float32 can hold: then it stays | 0 |
# | no overflow otherwise | stays | clean + 1 |
#
# A scale is always a **float32** number: round the product to float32, and return it as a Python `float`. The other
# fields stay. If the new scale would be below `SMALLEST_SCALE`, 2⁻¹²⁶, raise `FloatingPointError` that
# names `scale` and its old value, as a number: gradients that overflow at such a scale will overflow at any.
#
# `scaled_step(scaler, parameters, gradients, learning_rate) -> tuple[Scaler, list[Tensor], bool]` acts:
#
# - `parameters`: float32 tensors; `gradients`: as many, of the same shapes, **of the scaled loss**, float32 or float16;
# - if any element of any gradient is infinite or NaN, *all* parameters stay as they are;
# - otherwise each becomes p − learning_rate · g, where g is the gradient as float32 times the float32 number nearest to
#   1 / scale;
# - returns the next scaler, the new parameters, and whether the step was skipped; the tensors that were given do not
#   change.
#
# The trajectory of scales and parameters must equal that of `torch.amp.GradScaler` with `torch.optim.SGD` **bit for bit**,
# over 500 steps. Learning rates are powers of two, so it does not matter how you write the last product.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_scaler", "locked": true, "schema_version": 3, "solution": false, "task": false}
@dataclass(frozen=True)
class Scaler:
    """All that a dynamic loss scaler remembers."""

    scale: float  # a float32 number
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    clean: int = 0  # steps without overflow in a row, since the scale last had its chance to grow


def names_number(text: str, number: float) -> bool:
    """Whether a number in `text` is this one, however many of its digits are written (two at least)."""
    found = re.findall(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", text)
    return any(abs(float(n) / number - 1) < 0.05 for n in found)


# %% nbgrader={"grade": false, "grade_id": "scaler", "locked": false, "schema_version": 3, "solution": true, "task": false}
def next_scaler(scaler: Scaler, overflow: bool) -> Scaler:
    """The scaler after a step whose gradients did, or did not, overflow."""
    ### BEGIN SOLUTION
    if overflow:
        scale = float(np.float32(scaler.scale * scaler.backoff))
        if scale < SMALLEST_SCALE:
            raise FloatingPointError(f"scale = {scaler.scale:g}: gradients overflow even so; look for NaN in the data")
        return replace(scaler, scale=scale, clean=0)
    if scaler.clean + 1 < scaler.interval:
        return replace(scaler, clean=scaler.clean + 1)
    with np.errstate(over="ignore"):
        grown = float(np.float32(scaler.scale * scaler.growth))
    return replace(scaler, scale=grown if np.isfinite(grown) else scaler.scale, clean=0)
    ### END SOLUTION


def scaled_step(
    scaler: Scaler, parameters: list[torch.Tensor], gradients: list[torch.Tensor], learning_rate: float
) -> tuple[Scaler, list[torch.Tensor], bool]:
    """One step of SGD on the gradients of a scaled loss, or none."""
    ### BEGIN SOLUTION
    overflow = not all(bool(torch.isfinite(g).all()) for g in gradients)
    if not overflow:
        inverse = float(np.float32(1 / scaler.scale))
        parameters = [p - learning_rate * (g.float() * inverse) for p, g in zip(parameters, gradients, strict=True)]
    return next_scaler(scaler, overflow), list(parameters), overflow
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "scaler",
    "Write `next_scaler` first, one `return replace(scaler, …)` for each row of the table. `dataclasses.replace` is imported.",
    "`float(np.float32(x))` rounds to float32. Is the step that makes `clean` reach `interval` the one that grows, or the one after it? Count with interval = 1.",
    "In `scaled_step` decide once for all tensors: `all(bool(torch.isfinite(g).all()) for g in gradients)`. Cast a float16 gradient to float32 *before* you divide: what it was scaled up to save would be lost again.",
)

# %% nbgrader={"grade": true, "grade_id": "scaler_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("scaler", "a loss scaler that follows torch.amp.GradScaler bit for bit"):
    check.equal(next_scaler(Scaler(1024.0), False), Scaler(1024.0, clean=1), what="next_scaler after a clean step")
    check.equal(
        next_scaler(Scaler(1024.0, interval=3, clean=2), False),
        Scaler(2048.0, interval=3),
        what="next_scaler after the third clean step of interval = 3",
        hint={"scale": "the interval-th clean step grows, not the one after it", "clean": "counting begins anew"},
    )
    check.equal(
        next_scaler(Scaler(1024.0, clean=77), True),
        Scaler(512.0),
        what="next_scaler after an overflow",
        hint={"clean": "clean steps must come in a row: an overflow sets the count to 0"},
    )
    check.equal(
        next_scaler(Scaler(2.0**127, interval=1), False).scale,
        2.0**127,
        what="the scale after a growth that float32 cannot hold",
        hint="2¹²⁸ is infinity in float32: the scale stays",
    )
    last_scale = 3 * SMALLEST_SCALE
    check.raises(FloatingPointError, next_scaler, Scaler(last_scale, backoff=0.25), True, names="scale")
    try:
        next_scaler(Scaler(last_scale, backoff=0.25), True)
    except FloatingPointError as error:
        check.true(
            names_number(str(error), last_scale),
            f"FloatingPointError: {error}: expected the old scale, {last_scale:g}, in it",
        )
    start = [torch.tensor([1.0, 2.0]), torch.tensor([[3.0]])]
    gradients = [torch.tensor([4.0, -8.0]), torch.tensor([[0.0]])]
    scaler, stepped, skipped = scaled_step(Scaler(4.0), inout(start), inout(gradients), 0.5)
    check.equal(
        [stepped[0].tolist(), stepped[1].tolist(), skipped],
        [[0.5, 3.0], [[3.0]], False],
        what="parameters after a step at scale 4",
        hint="divide the gradients by the scale, then p − learning_rate · g",
    )
    check.equal(
        [p.tolist() for p in start],
        [[1.0, 2.0], [[3.0]]],
        what="the parameters that scaled_step was given, after it",
        hint="the parameters you were given must not change: return new tensors, p − …, not p.sub_(…) or p −= …",
    )
    check.equal(
        [g.tolist() for g in gradients],
        [[4.0, -8.0], [[0.0]]],
        what="the gradients that scaled_step was given, after it",
        hint="`.float()` of a float32 tensor is that tensor: multiply with `*`, not with `mul_`",
    )
    for bad, name in ((float("inf"), "an infinite"), (float("nan"), "a NaN")):
        scaler, stepped, skipped = scaled_step(
            Scaler(4.0), start, [torch.tensor([4.0, -8.0]), torch.tensor([[bad]])], 0.5
        )
        check.equal(
            [stepped[0].tolist(), stepped[1].tolist(), skipped, scaler.scale],
            [[1.0, 2.0], [[3.0]], True, 2.0],
            what=f"parameters, skipped, and scale after {name} gradient in the second tensor",
            hint="one bad element anywhere, and no parameter moves: a half-taken step is worse than none",
        )
    scaler, stepped, skipped = scaled_step(
        Scaler(2.0**14), [torch.zeros(1)], [torch.tensor([2.0**-12], dtype=torch.float16)], 1.0
    )
    check.close(
        stepped[0],
        [-(2.0**-26)],
        rtol=0,
        what="the step from a float16 gradient of 2⁻¹² at scale 2¹⁴",
        hint="in float16 the quotient is zero again: cast to float32 first",
    )

    def follow(steps, seed, start, growth, backoff, interval, bad_share, rate):
        """torch's scales and parameters beside the student's, over the same gradients; the first step that differs."""
        generator = torch.Generator().manual_seed(seed)
        theirs = [torch.nn.Parameter(torch.randn(3, 5, generator=generator)), torch.nn.Parameter(torch.zeros(7))]
        ours = [p.detach().clone() for p in theirs]
        optimizer = torch.optim.SGD(theirs, lr=rate)
        torch_scaler = torch.amp.GradScaler(
            "cpu", init_scale=start, growth_factor=growth, backoff_factor=backoff, growth_interval=interval
        )
        torch_scaler.scale(torch.zeros(()))  # lets it make its scale
        scaler = Scaler(float(np.float32(start)), growth, backoff, interval)
        for step in range(steps):
            scaled = [torch.randn(p.shape, generator=generator) * min(scaler.scale, 1e30) for p in theirs]
            if float(torch.rand((), generator=generator)) < bad_share:
                victim = scaled[step % 2].view(-1)
                victim[step % victim.numel()] = (float("inf"), float("nan"), -float("inf"))[step % 3]
            for parameter, gradient in zip(theirs, scaled, strict=True):
                parameter.grad = gradient.clone()
            torch_scaler.step(optimizer)
            torch_scaler.update()
            scaler, ours, skipped = scaled_step(scaler, ours, scaled, rate)
            check.equal(
                scaler.scale,
                torch_scaler.get_scale(),
                what=f"scale after step {step} (start {start:g}, growth {growth:g}, backoff {backoff:g}, interval {interval})",
                hint="a scale is float32, a growth beyond float32 is left out but still restarts the count, NaN overflows too",
            )
            same = all(torch.equal(a, b.detach()) for a, b in zip(ours, theirs, strict=True))
            check.true(
                same,
                f"the parameters after step {step} (start {start:g}, growth {growth:g}) are not torch's bit for bit; usually: division "
                "by the scale where torch multiplies by the float32 nearest to its inverse, or a step that should have been skipped",
            )

    follow(20, 1, 1000.0, 1.7, 0.3, 3, 0.1, 2.0**-4)
    ### BEGIN HIDDEN TESTS
    follow(500, 0, 2.0**16, 2.0, 0.5, 20, 0.06, 2.0**-6)
    follow(120, 3, 1000.0, 1.7, 0.3, 3, 0.1, 2.0**-4)
    follow(60, 2, 2.0**124, 2.0, 0.5, 2, 0.05, 2.0**-5)
    check.equal(
        next_scaler(Scaler(2.0**127, interval=1), False),
        Scaler(2.0**127, interval=1),
        what="next_scaler at the end of float32",
        hint={"scale": "2¹²⁸ is infinity in float32: the scale stays", "clean": "the count begins anew all the same"},
    )
    check.equal(
        next_scaler(Scaler(2.0**127, interval=5, clean=4), False).clean, 0, what="clean after a growth that was left out",
        hint="the interval begins anew, whether the scale could grow or not",
    )  # fmt: skip
    scaler, skips = Scaler(65536.0), 0
    try:
        for _ in range(1000):
            scaler, stepped, _ = scaled_step(scaler, [torch.ones(2)], [torch.tensor([1.0, float("nan")])], 1.0)
            skips += 1
    except FloatingPointError as error:
        check.true(
            names_number(str(error), SMALLEST_SCALE),
            f"FloatingPointError: {error}: expected the last scale, {SMALLEST_SCALE:g}, in it",
        )
    check.equal(
        skips,
        142,
        what="skipped steps before the scaler gives up, from 65536",
        hint="2¹⁶ down to 2⁻¹²⁶ are 142 halvings",
    )
    scaler, stepped, skipped = scaled_step(Scaler(2.0), [], [], 1.0)
    check.equal((stepped, skipped), ([], False), what="a step without parameters")
    ### END HIDDEN TESTS

# %% [markdown]
# ### Watch it
#
# The library's scaler at work on the digits, in emulated float16, started far too high on purpose and with an interval of
# 40 steps. It falls until nothing overflows, then feels for the ceiling again and again. Each dot is a step thrown away. (Ten epochs,
# some ten seconds.)
#
# **Predict first.** What percentage of the 220 steps is thrown away?

# %% tags=["demo"]
predict("skipped", "What percentage of 220 steps does the scaler throw away?", unit="%", guess=None)


# %% tags=["demo"] jupyter={"source_hidden": true}
class Recorded(LossScaler):
    """A scaler that keeps what it did."""

    def __init__(self, state):
        super().__init__(state)
        self.reports = []

    def step(self, optimizer):
        self.reports.append(super().step(optimizer))
        return self.reports[-1]


watched = Recorded(ScalerState(scale=2.0**30, growth_interval=40))
with_scaler, scaled_losses, _ = trained(torch.float16, epochs=10, rate=1e-3, scaler=watched)
powers = [np.log2(report.scale) for report in watched.reports]
skipped = [step for step, report in enumerate(watched.reports) if report.skipped]
fig, axes = figure(width=11, height=3.3)
axes.step(range(len(powers)), powers, where="post", color=palette.blue)
axes.plot(
    skipped,
    [powers[s] for s in skipped],
    "o",
    color=palette.vermillion,
    ms=5,
    label=f"{len(skipped)} of {len(powers)} steps skipped",
)
axes.set(xlabel="step", ylabel="scale, power of two", title="A loss scaler finds its level, and keeps asking")
axes.legend(loc="upper right")
show.figure(fig)
show.against_prediction(
    "skipped", round(100 * len(skipped) / len(powers), 1), unit="%", source="measured here, emulated"
)

# %% [markdown]
# The last claim of this part is a program: the mixed-precision sample of one of the texts builds its scaler with
# `torch.cuda.amp.GradScaler()`, opens `torch.cuda.amp.autocast(dtype=torch.bfloat16)`, and steps through the scaler. Does
# it run as written? One step of it on a linear layer, and what PyTorch itself says to it:

# %% tags=["demo"] jupyter={"source_hidden": true}
import warnings

from threeloops.hardware import device

sample = nn.Linear(64, 10).to(device())
sample_optimizer = torch.optim.SGD(sample.parameters(), lr=0.1)
images, labels = IMAGES[:64].flatten(1).to(device()), LABELS[:64].to(device())
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    sample_scaler = torch.cuda.amp.GradScaler()
    with torch.cuda.amp.autocast(dtype=torch.bfloat16):
        logits = sample(images)
        sample_loss = functional.cross_entropy(logits, labels)
    sample_scaler.scale(sample_loss).backward()
    sample_scaler.step(sample_optimizer)
    sample_scaler.update()
with torch.no_grad():
    assert functional.cross_entropy(sample(images), labels) < sample_loss
deprecated = [str(w.message) for w in told if issubclass(w.category, FutureWarning)]
for warning in told:
    print(str(warning.message).strip())
audit(
    "code-3",
    len(deprecated),
    "deprecation warnings from two calls",
    "GPU" if device() == "cuda" else "CPU",
    "holds",
    how=f"one step runs, its product in {str(logits.dtype).removeprefix('torch.')}{'' if device() == 'cuda' else ': without a GPU scaler and autocast switch themselves off'}. PyTorch {torch.__version__.split('+')[0]} asks for torch.amp.GradScaler('cuda') and torch.amp.autocast('cuda', …) instead. The scaler is superfluous with bfloat16, whose range is float32's",
)

# %% [markdown]
# ## 3 · Updates that are too small to matter
#
# A weight of 1, and an update of 1/4096. In bfloat16 the numbers next to 1 lie 1/128 above and 1/256 below it. The sum is
# rounded back to where it came from. So is the next one. A thousand steps in the same direction go nowhere: no warning,
# no NaN, a loss that has merely stopped falling.
#
# The cure is old, and costs memory: keep a **master** copy of each weight in float32, let the optimiser work on that, and
# give the model a rounded copy.

# %% tags=["demo"] jupyter={"source_hidden": true}
STEPS, UPDATE = 4096, 2.0**-12
walks = {}
for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
    weight, path = torch.ones(1, dtype=dtype), []
    for _ in range(STEPS):
        weight = weight + torch.tensor([UPDATE], dtype=dtype)
        path.append(weight.item())
    walks[name] = path
walks["bfloat16, float32 masters"] = (1 + UPDATE * torch.arange(1, STEPS + 1)).bfloat16().tolist()
fig, axes = figure(width=10, height=3.5)
for (name, path), colour, dashes in zip(
    walks.items(), (palette.orange, palette.green, palette.blue), ("-", (0, (6, 6)), "-"), strict=True
):
    axes.plot(path, color=colour, ls=dashes, label=name)
axes.set(xlabel="step", ylabel="weight", title=f"Adding 1/4096 to a weight of 1, {STEPS:,} times", ylim=(0.95, 2.1))
axes.legend(loc="upper left")
show.figure(fig)
show.against_prediction("stuck", walks["bfloat16"][-1])

# %% [markdown]
# bfloat16 ends where it began, and so does float16: next to a weight of 1 every increase of at most 1/256 is lost in
# bfloat16, of at most 1/2048 in float16, and this one is smaller still. With masters the model's weight climbs in steps of
# 1/128, never more than half a spacing from its master, and arrives.
#
# ### Exercise 3 (25 points)
#
# `lost(weights, updates) -> Tensor[bool]`: which updates the format swallows. `weights` is float16 or bfloat16, `updates`
# float32 of the same shape. True where the update is not zero, and the float32 sum of weight and update, rounded to the
# dtype of `weights`, is the weight itself.
#
# `begin(weights) -> Masters`: float32 masters of 16-bit `weights`, and a momentum of zeros.
#
# `master_step(state, gradients, learning_rate, momentum, dtype) -> tuple[Masters, Tensor]`: one step of SGD.
#
# - `gradients` come in 16 bits; the new momentum is *momentum · old momentum + gradient*;
# - the new masters are *masters − learning_rate · new momentum*;
# - the second result is what the model gets: the new masters, rounded to `dtype`.
#
# Everything but that last rounding happens in float32, and the state holds float32 tensors only. It must follow
# `torch.optim.SGD` on float32 weights bit for bit; learning rates are powers of two. Shapes that differ raise `ValueError`
# that names both: `(3,)` and `(2,)`.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_masters", "locked": true, "schema_version": 3, "solution": false, "task": false}
@dataclass(frozen=True)
class Masters:
    """What an optimiser keeps for one 16-bit weight tensor: float32, of the same shape."""

    weights: torch.Tensor
    momentum: torch.Tensor


# %% nbgrader={"grade": false, "grade_id": "masters", "locked": false, "schema_version": 3, "solution": true, "task": false}
def lost(weights: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Where an update that is not zero leaves a 16-bit weight as it was."""
    ### BEGIN SOLUTION
    require_same_shape(weights, updates)
    return ((weights.float() + updates).to(weights.dtype) == weights) & (updates != 0)
    ### END SOLUTION


def begin(weights: torch.Tensor) -> Masters:
    """Float32 masters of 16-bit weights."""
    ### BEGIN SOLUTION
    return Masters(weights.float(), torch.zeros(weights.shape))
    ### END SOLUTION


def master_step(
    state: Masters, gradients: torch.Tensor, learning_rate: float, momentum: float, dtype: torch.dtype
) -> tuple[Masters, torch.Tensor]:
    """One step of SGD with momentum on the masters, and the weights that the model gets."""
    ### BEGIN SOLUTION
    require_same_shape(state.weights, gradients)
    velocity = momentum * state.momentum + gradients.float()
    weights = state.weights - learning_rate * velocity
    return Masters(weights, velocity), weights.to(dtype)


def require_same_shape(first: torch.Tensor, second: torch.Tensor) -> None:
    if first.shape != second.shape:
        raise ValueError(f"shapes {tuple(first.shape)} and {tuple(second.shape)}: expected the same")
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "masters",
    "For `lost` do not think about thresholds: half a spacing is one number below a weight and another above it, and a tie may go either way. Do the sum, round it, compare.",
    "`weights.float() + updates` is the sum; `.to(weights.dtype)` rounds it. An update of zero loses nothing.",
    "In `master_step` the 16-bit weights are never read again. They are a shadow of the masters: whatever is computed from them has lost what the masters are there to keep.",
)

# %% nbgrader={"grade": true, "grade_id": "masters_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("masters", "lost updates, and float32 masters that lose none"):
    ones = torch.ones(5, dtype=torch.bfloat16)
    check.equal(
        lost(ones, torch.tensor([2.0**-12, 2.0**-8, 2.0**-7, 0.0, -(2.0**-12)])).tolist(),
        [True, True, False, False, True],
        what="updates of 2⁻¹², 2⁻⁸, 2⁻⁷, 0 and −2⁻¹² that a bfloat16 weight of 1 loses",
        hint="2⁻⁸ is half-way to the next number, and 1 is the even one; an update of zero is not lost",
    )
    check.equal(
        lost(torch.tensor([1.0, 512.0], dtype=torch.float16), torch.tensor([2.0**-10, 2.0**-10])).tolist(),
        [False, True],
        what="updates of 2⁻¹⁰ that float16 weights of 1 and 512 lose",
        hint="the spacing grows with the weight",
    )
    check.equal(
        lost(torch.ones(1, dtype=torch.bfloat16), torch.tensor([2.0**-8 + 2.0**-17])).tolist(),
        [False],
        what="an update of 2⁻⁸ + 2⁻¹⁷ that a bfloat16 weight of 1 loses",
        hint="just past half-way: round the sum, once; an update that is rounded to 16 bits first is half-way again",
    )
    state, model = master_step(
        Masters(torch.tensor([1.0]), torch.tensor([4.0])),
        torch.tensor([2.0], dtype=torch.float16),
        0.5,
        0.25,
        torch.float16,
    )
    check.equal(
        [state.momentum.item(), state.weights.item(), model.item()],
        [3.0, -0.5, -0.5],
        what="momentum, master and weight after a step",
        hint="new momentum = momentum · old + gradient, without the learning rate; then the masters move by learning_rate · new momentum",
    )
    state, model = begin(torch.ones(1, dtype=torch.bfloat16)), None
    check.dtype(state.weights, torch.float32, what="begin(…).weights")
    for _ in range(64):
        state, model = master_step(state, torch.tensor([-1.0], dtype=torch.bfloat16), 2.0**-12, 0.0, torch.bfloat16)
    check.dtype(model, torch.bfloat16, what="the weights that the model gets")
    check.equal(
        [state.weights.item(), model.item()],
        [1.015625, 1.015625],
        what="master and weight after 64 steps of 2⁻¹²",
        hint="the masters are the state: if each step begins from the rounded weights, all of them are lost",
    )
    state, model = master_step(
        Masters(torch.tensor([1.0]), torch.tensor([2.0**-9])), torch.ones(1, dtype=torch.bfloat16), 0.5, 0.5, torch.bfloat16
    )  # fmt: skip
    check.equal(
        [state.momentum.item(), state.weights.item(), model.item()],
        [1 + 2.0**-10, 0.5 - 2.0**-11, 0.5],
        what="momentum, master and weight after a step whose momentum needs more than 16 bits",
        hint="momentum and product in float32: cast the gradient to float32 first, and round nothing but the weights that the model gets",
    )
    check.raises(ValueError, lost, torch.ones(3, dtype=torch.float16), torch.ones(2), names=("(3,)", "(2,)"))
    check.raises(
        ValueError, master_step, begin(torch.ones(3, dtype=torch.float16)), torch.ones(2, dtype=torch.float16), 1.0, 0.0,
        torch.float16, names=("(3,)", "(2,)"),
    )  # fmt: skip

    ### BEGIN HIDDEN TESTS
    def on_the_ladder(weight, update, dtype):
        """Whether weight + update rounds to weight, from the neighbours' distances alone."""
        bits = torch.tensor([weight], dtype=dtype).view(torch.int16).item()
        exact = float(np.float32(np.float32(weight) + np.float32(update)))
        if exact == weight:
            return True
        outward = (exact > weight) == (weight > 0)
        code = bits & 0x7FFF
        neighbour = torch.tensor([code + (1 if outward else -1)], dtype=torch.int16).view(dtype).double().item()
        middle = (abs(weight) + neighbour) / 2
        size = abs(exact)
        if (exact > 0) != (weight > 0):
            return False
        if size == middle:
            return code % 2 == 0
        return size < middle if outward else size > middle

    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        for seed in range(4):
            generator = torch.Generator().manual_seed(seed)
            exponents = torch.randint(-9, 9, (60,), generator=generator)
            weights = (torch.randn(60, generator=generator) * 2.0**exponents).to(dtype)
            weights[:6] = torch.tensor([1.0, -1.0, 2.0, -0.5, 4.0, 1.5]).to(dtype)
            digits = 8 if dtype is torch.bfloat16 else 11
            spacing = 2.0 ** (torch.frexp(weights.float())[1] - digits).float()
            share = torch.tensor([-1.0, -0.5, -0.375, -0.25, -0.2, 0.2, 0.375, 0.5, 0.75, 0.0])
            updates = spacing * share[torch.randint(0, 10, (60,), generator=generator)]
            updates[:6] = spacing[:6] * 0.375 * torch.tensor([-1.0, 1.0, -1.0, 1.0, 1.0, -1.0])
            expected = [
                u != 0 and on_the_ladder(w, u, dtype) for w, u in zip(weights.tolist(), updates.tolist(), strict=True)
            ]
            check.equal(
                lost(weights, updates).tolist(),
                expected,
                what=f"lost updates of {name} weights, seed {seed}",
                hint="below a power of two the numbers lie twice as close as above it; ties go to the even code; do the sum in float32 and round it",
            )
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        for momentum in (0.0, 0.5, 0.9):
            generator = torch.Generator().manual_seed(5)
            first = torch.randn(4, 9, generator=generator).to(dtype)
            single = torch.nn.Parameter(first.float())
            optimizer, state = torch.optim.SGD([single], lr=2.0**-9, momentum=momentum), begin(first)
            check.dtype(state.momentum, torch.float32, what="begin(…).momentum")
            for step in range(40):
                gradient = (torch.randn(4, 9, generator=generator) * 2.0**-3).to(dtype)
                single.grad = gradient.float()
                optimizer.step()
                state, model = master_step(state, gradient, 2.0**-9, momentum, dtype)
                check.dtype(state.weights, torch.float32, what="the masters")
                check.dtype(state.momentum, torch.float32, what="the momentum")
                check.equal(
                    state.weights,
                    single.detach(),
                    what=f"masters of {name} weights after step {step}, momentum {momentum}",
                    hint="momentum and product in float32; the gradient is cast before anything is done to it",
                )
                check.equal(
                    model.float(), single.detach().to(dtype).float(), what=f"{name} weights after step {step}",
                    hint="rounded to nearest even from the masters, by .to(dtype)",
                )  # fmt: skip
    check.raises(
        ValueError, master_step, begin(torch.ones(2, 3, dtype=torch.float16)), torch.ones(3, dtype=torch.float16), 1.0, 0.0,
        torch.float16, names=("(2, 3)", "(3,)"),
    )  # fmt: skip
    ### END HIDDEN TESTS

# %% [markdown]
# ### Measure it
#
# Does any of this matter to a real training? Five of them, the same network, data, order and seed, with Adam at a rate that
# falls from 5·10⁻⁴ to a twelfth of it, as rates do. Only the formats differ; rounding is emulated on this CPU, exactly. All five
# together take about half a minute.
#
# **Predict first.** With its weights in bfloat16 and no masters: what share of all weight updates is lost in the last
# epoch?

# %% tags=["demo"]
predict(
    "lost_share",
    "What percentage of the weight updates is lost in the last epoch, bfloat16 without masters?",
    unit="%",
    guess=None,
)

# %% tags=["demo"] jupyter={"source_hidden": true}
generator = np.random.default_rng(5)


def to_bfloat16(p):
    return p.to(torch.bfloat16).to(p.dtype)


def stochastically(p):
    return torch.from_numpy(BF16.rounded(p.detach().numpy(), "stochastic", generator)).to(p.dtype)


RUNS = {
    "float32": {"dtype": torch.float32},
    "bfloat16, float32 masters": {"dtype": torch.bfloat16},
    "float16, masters, loss scaler": {"dtype": torch.float16, "scaler": LossScaler(ScalerState(growth_interval=100))},
    "bfloat16 weights, no masters": {"dtype": torch.bfloat16, "weights": to_bfloat16},
    "the same, rounded stochastically": {"dtype": torch.bfloat16, "weights": stochastically},
}
EPOCHS = 12
STUDY = {}
for name in progress(RUNS, "trainings"):
    STUDY[name] = trained(epochs=EPOCHS, rate=5e-4, **RUNS[name])
steps_an_epoch = len(STUDY["float32"][1]) // EPOCHS
fig, axes = figure(width=11, height=3.9)
styles = dict(
    zip(
        RUNS,
        [
            ("-", palette.ink),
            ("-", palette.blue),
            (":", palette.green),
            ("-", palette.vermillion),
            ("--", palette.purple),
        ],
        strict=True,
    )
)
for name, (_, losses, _) in STUDY.items():
    smooth = np.convolve(losses, np.ones(steps_an_epoch) / steps_an_epoch, mode="valid")
    broad = {"lw": 5, "alpha": 0.3} if name == "float32" else {}  # the others lie on it
    axes.plot(
        np.arange(len(smooth)) / steps_an_epoch + 1,
        smooth,
        ls=styles[name][0],
        color=styles[name][1],
        label=name,
        **broad,
    )
axes.set(
    xlabel="epoch",
    ylabel="training loss",
    title="The format of the products hardly matters; where the weights are kept does",
)
axes.legend(loc="lower left")
show.figure(fig)
last = slice(-steps_an_epoch, None)
show.table(
    [
        [
            name,
            f"{np.mean(losses[last]):.3f}",
            f"{100 * accuracy(network):.1f}%",
            f"{100 * np.mean(gone[last]):.0f}%" if gone else "not counted",
        ]
        for name, (network, losses, gone) in STUDY.items()
    ],
    ["", "loss, last epoch", "of 360 held-out images", "updates without effect, last epoch"],
)
show.against_prediction(
    "lost_share",
    round(100 * np.mean(STUDY["bfloat16 weights, no masters"][2][last]), 1),
    unit="%",
    source="measured here, emulated",
)
with_masters, without = (
    np.mean(STUDY[name][1][last]) for name in ("bfloat16, float32 masters", "bfloat16 weights, no masters")
)
assert without > with_masters

# %% [markdown]
# float32, bfloat16 and scaled float16 lie on top of each other: what the products were computed in makes no visible
# difference to this network. What does make one is the red line, where the *weights* are stored in bfloat16. Look at how it
# fails. The rate falls, the updates shrink with it, and one weight after another no longer feels them. There is no
# warning; 360 held-out images hardly tell. Nobody would see it without the broad grey line beside it, float32's. (The last line of the
# table belongs to a deep dive below: there too most updates move nothing, but the others make up for them.)
#
# How fast these trainings are on a GPU, and how much memory they take there: not measured by the course yet. On a machine
# with a GPU the next cell measures both, and trains a residual network with nothing emulated: on the digits, or on CIFAR-10
# if `THREELOOPS_CIFAR10` names a folder that holds it (`cifar-10-batches-py` or `-bin`).

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.hardware import accelerator

if device() == "cuda":
    from threeloops.data.cifar import local_cifar10
    from threeloops.models.resnet import resnet18, resnet20

    PRECISIONS = (
        ("float32", None, False),
        ("float32, convolutions in TF32 (the default)", None, True),
        ("bfloat16", torch.bfloat16, True),
        ("float16", torch.float16, True),
    )

    def autocast_step(model, optimizer, scaler, low, images, labels):
        """One step with PyTorch's own autocast and scaler."""
        optimizer.zero_grad()
        with torch.autocast(device(), dtype=low, enabled=low is not None):
            loss = functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    rows = []
    for name, low, tf32 in PRECISIONS:
        torch.backends.cudnn.allow_tf32 = tf32
        model = resnet18(classes=10).to(device())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        scaler = torch.amp.GradScaler(device(), enabled=low is torch.float16)
        images = torch.randn(256, 3, 224, 224, device=device())
        labels = torch.randint(0, 10, (256,), device=device())
        torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(12):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            autocast_step(model, optimizer, scaler, low, images, labels)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        rows.append([name, f"{256 / np.median(times[3:]):.0f}", f"{torch.cuda.max_memory_allocated() / 2**30:.2f}"])
    show.table(rows, ["ResNet-18, 256 images of 224 × 224", "images/s", "peak GiB"])

    cifar = local_cifar10()
    if cifar is None:
        images, labels, training, held_out, batch_size, what = IMAGES, LABELS, TRAINING, HELD_OUT, 64, "the digits"
    else:
        images = torch.from_numpy(cifar.images).float() / 127.5 - 1
        labels, batch_size, what = torch.from_numpy(cifar.labels), 256, "CIFAR-10"
        training, held_out = torch.arange(len(labels)).split([cifar.training, cifar.held_out])
    rows, images, labels = [], images.to(device()), labels.to(device())
    for name, low, tf32 in PRECISIONS:
        torch.backends.cudnn.allow_tf32 = tf32
        torch.manual_seed(0)
        model, shuffle = resnet20(channels=images.shape[1]).to(device()), torch.Generator().manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        scaler = torch.amp.GradScaler(device(), enabled=low is torch.float16)
        for _ in range(12):
            for batch in training[torch.randperm(len(training), generator=shuffle)].split(batch_size):
                autocast_step(model, optimizer, scaler, low, images[batch], labels[batch])
        model.eval()
        with torch.no_grad():
            right = (model(images[held_out]).argmax(1) == labels[held_out]).float().mean()
        rows.append([name, f"{100 * right:.1f} %"])
    show.table(rows, [f"ResNet-20 on {what}, 12 epochs", f"of {len(held_out):,} held out"])
else:
    print("no GPU here: images/s and memory of mixed precision are not measured")

# %% [markdown]
# "Half the memory" can be settled without one, by counting. Autocast keeps weights, gradients and optimiser states in
# float32; what it shrinks is what the backward pass needs from the forward pass. PyTorch can be asked what it saves.
# How much that is depends on the operators, and on the device: on a CPU autocast lets a layer norm run in bfloat16, on a
# GPU it casts the input to float32. The second can be emulated here.
#
# **Predict first.** Six blocks of linear layer, layer norm and GELU. What is saved under the policy for GPUs, in per cent
# of what float32 saves?

# %% tags=["demo"]
predict("saved", "What do saved activations shrink to under autocast on a GPU?", unit="%", guess=None)


# %% tags=["demo"] jupyter={"source_hidden": true}
class Float32LayerNorm(nn.LayerNorm):
    """What autocast on a GPU makes of a layer norm: its input is cast to float32, and so it leaves it."""

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.float())


def saved_bytes(low, norm=nn.LayerNorm):
    """Bytes of distinct storages that one forward pass of an MLP saves for its backward pass, weights left out."""
    torch.manual_seed(0)
    model = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(512, 512), norm(512), nn.GELU())))
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tensor.shape[0] == 1024:
            found[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=low),
    ):
        model(torch.randn(1024, 512)).sum()
    return sum(size for size, _ in found.values()), sum(p.numel() for p in model.parameters())


full, parameters = saved_bytes(False)
on_cpu, on_gpu = saved_bytes(True)[0], saved_bytes(True, Float32LayerNorm)[0]
states = 16 * parameters  # weights, gradients and Adam's two moments, float32: 4 bytes each


def beside_float32(name, single, *others):
    return [name, f"{single / 2**20:.1f}", *(f"{other / 2**20:.1f}: {other / single:.2f} ×" for other in others)]


show.table(
    [
        beside_float32("weights, gradients, Adam", states, states, states),
        beside_float32("saved activations", full, on_cpu, on_gpu),
        beside_float32("together", states + full, states + on_cpu, states + on_gpu),
    ],
    ["MiB", "float32", "autocast, CPU policy", "autocast, GPU policy (emulated)"],
)
show.against_prediction("saved", round(100 * on_gpu / full, 1), unit="%", source="measured here, emulated")
audit(
    "prec-4",
    round((states + on_gpu) / (states + full), 3),
    "of the memory in float32 (GPU policy, emulated)",
    "CPU",
    "corrected",
    how=f"counted in a small MLP: activations shrink to {100 * on_gpu / full:.0f}% under the GPU policy, whose layer norms run in float32, and to {100 * on_cpu / full:.0f}% under the CPU policy ({(states + on_cpu) / (states + full):.2f} in all); the 16 bytes per parameter of weights, gradients and Adam stay; autocast adds 16-bit copies of the weights while it runs. The factor of two in speed needs a GPU and is not measured here",
)
adam_weight = nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
adam = torch.optim.AdamW([adam_weight], lr=1e-4, weight_decay=0.0)
adam_weight.grad = torch.ones_like(adam_weight)
adam.step()
kept = {str(v.dtype).removeprefix("torch.") for v in adam.state[adam_weight].values() if v.shape == adam_weight.shape}
unmoved = 100 * (adam_weight == 1).float().mean().item()
assert kept == {"bfloat16"}
audit(
    "prec-6",
    unmoved,
    "% of the weights did not move",
    "CPU",
    "corrected",
    how=f"torch.optim.AdamW on 1,000 bfloat16 weights of 1, one step of 10⁻⁴: its state is {', '.join(kept)}, there is no master copy, and the update is lost. Frameworks that promise masters (Megatron, DeepSpeed, Apex O2) add them themselves",
)
audit(
    "prec-7",
    round(175e9 * 4 / 3e12 * 1e3, 1),
    "ms",
    "model",
    "holds",
    how="175·10⁹ × 4 bytes = 700 GB; at 3 TB/s 233 ms, if one device could hold them: an H100 holds 80 GB",
)

# %% [markdown]
# ## 4 · A scale for each tensor
#
# With eight bits there is no format that fits everything. float8_e4m3fn reaches from 0.002 to 448, less than eighteen
# powers of two, and training has found a division of labour: e4m3fn for activations and weights, which need precision;
# e5m2, wider and coarser, for gradients. And each *tensor* is multiplied by a scale of its own, so that its largest
# magnitude, its **amax**, lands near the top of the format.
#
# To know the amax you must have read the tensor, and the matmul that wants it in FP8 is waiting. **Delayed scaling**
# does not wait. It takes the scale from the amaxes of the last steps, casts in a single pass, and records the new amax on
# the way. It bets that tomorrow's tensor is as large as yesterday's. When the bet fails, what lies above the
# ceiling is clipped, until the history has seen it.
#
# **Predict first.** Sixty tensors whose amax wanders by 5% a step, with one outlier, and one lasting jump. How many are
# clipped if the scale comes from the last sixteen amaxes? How many if it comes from the last one alone?

# %% tags=["demo"]
predict("clipped_16", "Of 60 tensors, how many are clipped with a history of 16?", guess=None)
predict("clipped_1", "And with a history of 1?", guess=None)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.precision.fp8 import Recipe, ScaleState, after_tensor

E4M3 = FLOAT_FORMATS["float8_e4m3fn"]
random_walk = np.random.default_rng(3)
amaxes = 4.0 * np.exp(np.cumsum(random_walk.normal(0, 0.05, 60)))
amaxes[22] *= 9
amaxes[40:] *= 5
fig, axes = figure(width=11, height=3.5)
CLIPPED = {}
axes.plot(amaxes, "o", color=palette.ink, ms=4, label="amax of the tensor", zorder=4)
for length, colour in ((16, palette.blue), (1, palette.orange)):
    state, ceiling = ScaleState(E4M3.largest / 4), []
    for amax in amaxes:
        ceiling.append(E4M3.largest / state.scale)
        state = after_tensor(state, float(amax), E4M3, Recipe(history_length=length))
    CLIPPED[length] = int((amaxes > np.array(ceiling) * 1.0001).sum())
    axes.step(
        range(60),
        ceiling,
        where="mid",
        color=colour,
        label=f"ceiling, history of {length}: {CLIPPED[length]} tensors clipped",
    )
axes.set(
    yscale="log",
    xlabel="step",
    ylabel="magnitude",
    title="Delayed scaling: what lies above a line is clipped",
)
axes.set_yticks([3, 5, 10, 20, 30], ["3", "5", "10", "20", "30"])
axes.minorticks_off()
axes.legend(loc="upper left")
show.figure(fig)
for length, clipped in CLIPPED.items():
    show.against_prediction(f"clipped_{length}", clipped, source="model")

# %% [markdown]
# A long history keeps the ceiling high after an outlier: less clipping, and fewer bits for everything else in the
# meantime. Floating point forgives that. A scale four times too small costs e4m3fn almost nothing until the small
# elements fall into the subnormal range.
#
# ### Exercise 4 (25 points)
#
# `quantise(x, scale, dtype) -> Tensor`: x · scale in float32, limited to ±`LARGEST[dtype]`, rounded to `dtype`
# (`torch.float8_e4m3fn` or `torch.float8_e5m2`; the result has that dtype). Never an infinity.
#
# `next_delayed(state: Delayed, amax: float, largest: float, recipe: Recipe8) -> Delayed`
#
# - appends `amax`, rounded to float32, to the history, newest last, and keeps the newest `window` of them;
# - the new scale is *largest · 2^(−margin) / m*, where m is the largest amax in the history **including the new one**,
#   divided in float32 and returned as a Python `float`;
# - if m is 0 the scale stays; if m is so small that the quotient is infinite, the scale is `LARGEST_SCALE`, the largest
#   float32 number. If `amax` is infinite or NaN nothing changes at all: the state is returned as it was.
#
# `fp8_linear(x, weight, gradient, states, recipe) -> Products`: the three matrix products of a linear layer's training
# step. x is (tokens, inputs), weight (outputs, inputs), gradient (tokens, outputs), all float32; `gradient` is that of
# the loss with respect to the result y.
#
# - `states` holds the `Delayed` of `"x"`, `"weight"` and `"gradient"`. Each tensor is quantised with the scale that its
#   state holds **now**; x and weight as e4m3fn, the gradient as e5m2;
# - `y` = x · weightᵀ, `x_gradient` = gradient · weight, `weight_gradient` = gradientᵀ · x, each from the *quantised*
#   tensors, multiplied in float32 and divided by both scales;
# - `states`: the next ones, from the amax of each tensor as it came in, unscaled and unclipped.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_fp8", "locked": true, "schema_version": 3, "solution": false, "task": false}
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
LARGEST_SCALE = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Delayed:
    """The scale for the next tensor, and the amaxes behind it, oldest first."""

    scale: float = 1.0
    history: tuple[float, ...] = ()


@dataclass(frozen=True)
class Recipe8:
    """`margin`: powers of two to stay below the top; `window`: amaxes that are remembered."""

    margin: int = 0
    window: int = 16


@dataclass(frozen=True)
class Products:
    """What one training step of a linear layer yields."""

    y: torch.Tensor
    x_gradient: torch.Tensor
    weight_gradient: torch.Tensor
    states: dict[str, Delayed]


# %% nbgrader={"grade": false, "grade_id": "fp8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def quantise(x: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """x · scale in FP8, saturated."""
    ### BEGIN SOLUTION
    return (x.float() * scale).clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype)
    ### END SOLUTION


def next_delayed(state: Delayed, amax: float, largest: float, recipe: Recipe8) -> Delayed:
    """The state after a tensor whose largest magnitude was `amax`."""
    ### BEGIN SOLUTION
    if not np.isfinite(amax):
        return state
    history = (*state.history, float(np.float32(amax)))[-recipe.window :]
    reference = max(history)
    if reference == 0:
        return Delayed(state.scale, history)
    with np.errstate(over="ignore"):
        scale = float(np.float32(largest * 2.0**-recipe.margin) / np.float32(reference))
    return Delayed(min(scale, LARGEST_SCALE), history)
    ### END SOLUTION


def fp8_linear(
    x: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, states: dict[str, Delayed], recipe: Recipe8
) -> Products:
    """y = x · weightᵀ and both gradients, all three products in FP8."""
    ### BEGIN SOLUTION
    tensors = {"x": x, "weight": weight, "gradient": gradient}
    dtypes = {"x": torch.float8_e4m3fn, "weight": torch.float8_e4m3fn, "gradient": torch.float8_e5m2}
    quantised = {n: quantise(t, states[n].scale, dtypes[n]).float() / states[n].scale for n, t in tensors.items()}
    following = {
        n: next_delayed(states[n], float(t.abs().max()), LARGEST[dtypes[n]], recipe) for n, t in tensors.items()
    }
    qx, qw, qg = (quantised[n] for n in ("x", "weight", "gradient"))
    return Products(qx @ qw.t(), qg @ qw, qg.t() @ qx, following)
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "fp8",
    "`quantise` is one line: multiply, `clamp`, `.to(dtype)`. Without the clamp e5m2 makes an infinity of what is too large, and one infinity is enough to spoil a whole product.",
    "The history is a tuple: `(*state.history, new)[-recipe.window:]`. Divide in float32: `np.float32(a) / np.float32(b)`.",
    "In `fp8_linear` use the old states for quantising and build the new ones from the tensors as they came in. The amax of the *quantised* tensor can never exceed the last ceiling: such a scale would never learn that something was clipped.",
)

# %% nbgrader={"grade": true, "grade_id": "fp8_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("fp8", "FP8 with a delayed scale for each tensor"):
    e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
    check.dtype(quantise(torch.ones(2), 1.0, e4m3), e4m3, what="quantise(…)")
    check.equal(
        quantise(torch.tensor([0.3, 1.0, -100.0, 0.0]), 8.0, e4m3).float().tolist(),
        [2.5, 8.0, -448.0, 0.0],
        what="quantise([0.3, 1, −100, 0], 8) as e4m3fn",
        hint="x · scale, limited to ±448, then rounded",
    )
    check.equal(
        quantise(torch.tensor([1e6, -7e4]), 1.0, e5m2).float().tolist(),
        [57344.0, -57344.0],
        what="quantise of what is too large for e5m2",
        hint="e5m2 has infinities: limit the values before the cast",
    )
    state = Delayed()
    for amax, scale, history in (
        (2.0, 224.0, (2.0,)),
        (8.0, 56.0, (2.0, 8.0)),
        (1.0, 56.0, (8.0, 1.0)),
        (1.0, 448.0, (1.0, 1.0)),
    ):
        state = next_delayed(state, amax, 448.0, Recipe8(window=2))
        check.equal(
            state,
            Delayed(scale, history),
            what=f"next_delayed after an amax of {amax:g}, window 2",
            hint={
                "scale": "the largest amax in the window, the new one included",
                "history": "newest last, at most two",
            },
        )
    check.equal(
        next_delayed(Delayed(7.0), 0.0, 448.0, Recipe8()),
        Delayed(7.0, (0.0,)),
        what="next_delayed after a tensor of zeros",
        hint={"scale": "largest / 0 is no scale: it stays", "history": "a zero is remembered like any other amax"},
    )
    check.equal(
        next_delayed(Delayed(), 1.0, 448.0, Recipe8(margin=2)).scale, 112.0, what="the scale with a margin of 2",
        hint="a margin keeps the tensor *below* the top: it divides the scale by 2^margin",
    )  # fmt: skip
    check.equal(
        next_delayed(Delayed(), 1e-40, 448.0, Recipe8()).scale,
        LARGEST_SCALE,
        what="the scale after an amax of 1e-40",
        hint="448 / 1e-40 is more than float32 can hold: the scale is LARGEST_SCALE",
    )
    rng = torch.Generator().manual_seed(0)
    x, weight, gradient = (torch.randn(*shape, generator=rng) for shape in ((5, 8), (3, 8), (5, 3)))
    states = {"x": Delayed(64.0), "weight": Delayed(128.0), "gradient": Delayed(2.0**12)}
    step = fp8_linear(x, weight, gradient, states, Recipe8())
    usual = "divide by both scales; which tensor is transposed where?"
    for name, value, expected, hints in (
        ("y", step.y, x @ weight.t(), usual),
        ("x_gradient", step.x_gradient, gradient @ weight, usual + " is the gradient e5m2?"),
        ("weight_gradient", step.weight_gradient, gradient.t() @ x, usual + " is the gradient e5m2?"),
    ):
        check.shape(value, tuple(expected.shape), what=name)
        check.close(value, expected, rtol=0.0, atol=0.8, what=f"{name} of 5 tokens", hint=hints)
    check.close(
        step.states["x"].scale,
        448.0 / x.abs().max().item(),
        what="the next scale of x",
        hint="from the amax of x as it came in",
    )
    check.close(
        step.states["gradient"].scale, 57344.0 / gradient.abs().max().item(), what="the next scale of the gradient"
    )
    single = [torch.tensor([[value]]) for value in (0.3, 1.0, 0.35)]
    step = fp8_linear(*single, {name: Delayed(8.0) for name in states}, Recipe8())
    for name, value, expected in (
        ("y", step.y, 0.3125),
        ("x_gradient", step.x_gradient, 0.375),
        ("weight_gradient", step.weight_gradient, 0.1171875),
    ):
        check.close(
            value, [[expected]], what=f"{name} of x = 0.3, weight 1, gradient 0.35, all scales 8",
            hint="2.4 is 2.5 in e4m3fn, 2.8 is 3 in e5m2: quantise before you multiply, with the scales *before* this step; is the gradient e5m2?",
        )  # fmt: skip
    ### BEGIN HIDDEN TESTS
    TABLES = {}
    for dtype in (e4m3, e5m2):
        fields, mantissa, b = (16, 8, 7) if dtype is e4m3 else (31, 4, 15)
        rungs = [(min(f, 1) + m / mantissa) * 2.0 ** (max(f, 1) - b) for f in range(fields) for m in range(mantissa)]
        TABLES[dtype] = np.array(rungs[:-1] if dtype is e4m3 else rungs)

    def rounded(values, dtype):
        """Nearest number of the table, ties to the even place, saturated; float64."""
        table = TABLES[dtype]
        size = np.minimum(np.abs(values), table[-1])
        above = np.clip(np.searchsorted(table, size), 1, len(table) - 1)
        low, high = table[above - 1], table[above]
        up = (size - low > high - size) | ((size - low == high - size) & (above % 2 == 0))
        return np.copysign(np.where(up, high, low), values)

    for dtype, name in ((e4m3, "e4m3fn"), (e5m2, "e5m2")):
        for seed in range(3):
            generator = torch.Generator().manual_seed(seed)
            values = torch.randn(17, 31, generator=generator) * 10.0 ** torch.randint(
                -4, 5, (17, 31), generator=generator
            )
            scale = [1.0, 3.7, 300.0][seed]
            got = quantise(values, scale, dtype)
            check.close(
                got.float(),
                rounded((values * scale).double().numpy(), dtype),
                rtol=0,
                what=f"quantise of random values as {name}, scale {scale}",
                hint="x · scale in float32, limited, rounded once to nearest even",
            )

    def follow(amaxes, largest, margin, window):
        """Delayed scales from the recipe, with numpy's float32."""
        scale, history, found = 1.0, [], []
        for amax in amaxes:
            if np.isfinite(amax):
                history = [*history, float(np.float32(amax))][-window:]
                if max(history) > 0:
                    scale = float(np.float32(np.float32(largest * 2.0**-margin) / np.float32(max(history))))
            found.append((scale, tuple(history)))
        return found

    for seed in range(4):
        rng = check.rng(seed)
        amaxes = (10.0 ** rng.uniform(-5, 3, 40)).tolist()
        amaxes[3], amaxes[9], amaxes[10], amaxes[20] = 0.0, float("inf"), float("nan"), 1e-30
        margin, window = seed - 1, (1, 3, 5, 40)[seed]
        largest = (448.0, 57344.0)[seed % 2]
        state = Delayed()
        for at, (amax, (scale, history)) in enumerate(
            zip(amaxes, follow(amaxes, largest, margin, window), strict=True)
        ):
            state = next_delayed(state, amax, largest, Recipe8(margin, window))
            check.equal(
                state,
                Delayed(scale, history),
                what=f"next_delayed after amax number {at} ({amax:g}), margin {margin}, window {window}",
                hint={
                    "scale": "float32 throughout; zeros keep it",
                    "history": "infinite and NaN amaxes are not remembered; at most `window` of them, newest last",
                },
            )
    zeros = Delayed(5.0, (0.0,))
    check.equal(next_delayed(zeros, 0.0, 448.0, Recipe8(window=1)), zeros, what="next_delayed after zeros only")

    kinds = {"x": e4m3, "weight": e4m3, "gradient": e5m2}
    for recipe in (Recipe8(0, 3), Recipe8(1, 1)):
        generator = torch.Generator().manual_seed(11)
        states = {name: Delayed() for name in kinds}
        for at in range(6):
            given = {
                "x": torch.randn(33, 17, generator=generator) * (60.0 if at == 3 else 1.0),
                "weight": torch.randn(9, 17, generator=generator) * 0.05,
                "gradient": torch.randn(33, 9, generator=generator) * 1e-4 * 20.0 ** (at == 4),
            }
            step = fp8_linear(given["x"], given["weight"], given["gradient"], states, recipe)
            exact = {
                name: rounded((tensor * states[name].scale).double().numpy(), kinds[name]) / states[name].scale
                for name, tensor in given.items()
            }
            for name, value, left, right in (
                ("y", step.y, exact["x"], exact["weight"].T),
                ("x_gradient", step.x_gradient, exact["gradient"], exact["weight"]),
                ("weight_gradient", step.weight_gradient, exact["gradient"].T, exact["x"]),
            ):
                expected = left @ right
                check.close(
                    value,
                    expected,
                    rtol=1e-4,
                    atol=2e-6 * float((np.abs(left) @ np.abs(right)).max()),
                    what=f"{name} of step {at}, window {recipe.window}, margin {recipe.margin}",
                    hint="quantise with the scales *before* this step: an outlier is clipped the first time it is seen; the gradient is e5m2",
                )
            wanted = {}
            for name, tensor in given.items():
                amax, old = tensor.abs().max().item(), states[name]
                history = (*old.history, amax)[-recipe.window :]
                top = np.float32(LARGEST[kinds[name]] * 2.0**-recipe.margin)
                wanted[name] = Delayed(float(np.float32(top / np.float32(max(history)))), history)
            check.equal(
                step.states, wanted, what=f"states after step {at}, window {recipe.window}, margin {recipe.margin}",
                hint={"scale": "from the amax of the tensor as it came in, not of its quantised copy", "history": "oldest first"},
            )  # fmt: skip
            states = step.states
    ### END HIDDEN TESTS

# %% [markdown]
# ### Measure it
#
# How good is a product of FP8 matrices? Here x is small, and a few of its columns are large, as the activations of
# language models have them. The error is that of the whole product, relative to its own size.
#
# **Predict first.** A number in e4m3fn has three mantissa bits, so rounding changes it by up to 1/16. By how many per
# cent is a sum of 512 such products off, with a good scale?

# %% tags=["demo"]
predict(
    "fp8_error", "Relative error of a product of 512-wide matrices in e4m3fn, each tensor scaled?", unit="%", guess=None
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.precision.fp8 import Fp8Linear
from threeloops.inner.precision.fp8 import quantise as to_fp8

torch.manual_seed(0)
activations, projection = torch.randn(256, 512) * 2e-5, torch.randn(512, 512) * 0.02
activations[:, ::64] *= 30
exact_product = activations.double() @ projection.double().t()


def product_error(of_x, of_w):
    return 100 * ((of_x.double() @ of_w.double().t() - exact_product).norm() / exact_product.norm()).item()


def scaled_down(x, format, scale):
    return to_fp8(x, scale, format).dequantised()


E5 = FLOAT_FORMATS["float8_e5m2"]
best = [E4M3.largest / t.abs().max().item() for t in (activations, projection)]
ERRORS = {
    "bfloat16": product_error(activations.bfloat16(), projection.bfloat16()),
    "e4m3fn, scaled to its amax": product_error(
        scaled_down(activations, E4M3, best[0]), scaled_down(projection, E4M3, best[1])
    ),
    "e4m3fn, scale 16 × too small": product_error(
        scaled_down(activations, E4M3, best[0] / 16), scaled_down(projection, E4M3, best[1] / 16)
    ),
    "e4m3fn, scale 16 × too large": product_error(
        scaled_down(activations, E4M3, best[0] * 16), scaled_down(projection, E4M3, best[1] * 16)
    ),
    "e4m3fn, no scale": product_error(scaled_down(activations, E4M3, 1.0), scaled_down(projection, E4M3, 1.0)),
    "e4m3fn, no scale, x 1,000 × larger": product_error(
        scaled_down(1000 * activations, E4M3, 1.0) / 1000, scaled_down(projection, E4M3, 1.0)
    ),
    "e5m2, scaled": product_error(
        scaled_down(activations, E5, E5.largest / activations.abs().max().item()),
        scaled_down(projection, E5, E5.largest / projection.abs().max().item()),
    ),
}
fig, axes = figure(width=9.5, height=3.2)
bars = axes.barh(
    list(ERRORS), list(ERRORS.values()), color=[palette.ink] + [palette.blue] + [palette.orange] * 4 + [palette.sky]
)
axes.bar_label(bars, [f" {e:.2g}%" for e in ERRORS.values()])
axes.set(xscale="log", xlim=(0.1, 300), xlabel="relative error of the product, %", title="What a scale is worth")
axes.invert_yaxis()
axes.grid(axis="y", visible=False)
show.figure(fig)
show.against_prediction(
    "fp8_error", round(ERRORS["e4m3fn, scaled to its amax"], 2), unit="%", source="measured here, emulated"
)
assert ERRORS["e4m3fn, scale 16 × too large"] > 5 * ERRORS["e4m3fn, scaled to its amax"]

# %% [markdown]
# Too small a scale costs little, as long as the small elements stay normal numbers; too large a scale clips, and that is
# another order of error. So a recipe takes the *largest* amax of its window, not the mean. Without a scale it is luck:
# most of this x lies below the smallest e4m3fn number, 0.002, and becomes zero; a thousand times as large, the same x
# would hardly have needed one.
#
# Why is a sum of 512 products no more exact than that? Rounding to e4m3fn changes each factor by 2.6% (root mean square),
# each product by √2 times as much. The errors have random signs and partly cancel in the sum; but so do the products
# themselves, and the ratio stays.
#
# A few per cent of noise in each product sounds like much. Whether a training minds is a question for a training:


# %% tags=["demo"] jupyter={"source_hidden": true}
def digits_mlp(make, seed=0):
    """Mean loss of the last epoch, and held-out accuracy, of an MLP whose linear layers `make` makes."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), make(64, 128), nn.ReLU(), make(128, 64), nn.ReLU(), make(64, 10))
    optimizer, shuffle, losses = torch.optim.Adam(model.parameters(), lr=1e-3), np.random.default_rng(1), []
    for _ in range(10):
        order, losses = shuffle.permutation(TRAINING), []
        for start in range(0, len(order) - 63, 64):
            batch = order[start : start + 64]
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(IMAGES[batch]), LABELS[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses)), accuracy(model)


in_single, in_fp8 = digits_mlp(nn.Linear), digits_mlp(lambda i, o: Fp8Linear(i, o, recipe=Recipe(history_length=16)))
other_seeds = sorted(digits_mlp(nn.Linear, seed) for seed in (1, 2))
show.table(
    [
        ["float32", f"{in_single[0]:.3f}", f"{100 * in_single[1]:.1f}%"],
        ["FP8, all three products of each layer", f"{in_fp8[0]:.3f}", f"{100 * in_fp8[1]:.1f}%"],
        [
            "float32, two other seeds",
            " to ".join(f"{loss:.3f}" for loss, _ in other_seeds),
            " to ".join(f"{100 * share:.1f}%" for share in sorted(share for _, share in other_seeds)),
        ],
    ],
    ["linear layers", "loss, last epoch", "held-out accuracy"],
)
h100 = accelerator("H100 SXM")
audit(
    "prec-5",
    1.5,
    "× end to end, at most",
    "published",
    "corrected",
    how=f"The matmul rate doubles ({h100.rates['fp8'] / 1e12:.0f} against {h100.rates['bf16'] / 1e12:.0f} TFLOP/s on an H100), the step does not: torchao reports 1.25 × for Llama 3 8B on 8 H100s and up to 1.5 × at 405B on 512 (pytorch/ao, torchao/float8/README.md). Llama 3.1 was not trained in FP8: its paper (arXiv:2407.21783, section 6) uses FP8 for inference. DeepSeek-V3 (arXiv:2412.19437, section 3.3) was, and reports a loss within 0.25% of bfloat16's, with a scale for each tile of 1 × 128 or block of 128 × 128 instead of one for each tensor. Losses on this MLP: {in_fp8[0]:.3f} in emulated FP8, {in_single[0]:.3f} in float32",
)

# %% [markdown]
# The GPU's side of it, an 8192³ product in FP8 against bfloat16: not measured by the course yet. On a Hopper GPU this
# cell measures it.

# %% tags=["demo"] jupyter={"source_hidden": true}
if device() == "cuda" and torch.cuda.get_device_capability() >= (8, 9):
    from threeloops.inner.precision.fp8 import product
    from threeloops.inner.timing import benchmark

    n = 8192

    def in_8_bits():
        return tuple(to_fp8(torch.randn(n, n, device="cuda"), 100.0, E4M3) for _ in range(2))

    def in_16_bits():
        return tuple(torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    eight = benchmark(lambda a, b: product(a, b, torch.bfloat16, hardware=True), in_8_bits, device="cuda", samples=20)
    sixteen = benchmark(lambda a, b: a @ b.t(), in_16_bits, device="cuda", samples=20)
    show.table(
        [
            [name, f"{s.median * 1e3:.3f}", f"{2 * n**3 / s.median / 1e12:.0f}"]
            for name, s in (("FP8", eight), ("bfloat16", sixteen))
        ],
        [f"{n}³", "ms", "TFLOP/s"],
    )
else:
    print("no GPU with FP8 tensor cores here: the rate is not measured")

# %% [markdown]
# ## Deep dive: who decides what runs in 16 bits
#
# `torch.autocast` casts nothing by magic. It holds four lists of operators, and the library has them as data. Matrix
# products go to the low dtype: they are where the time is, and they sum in float32 inside. Exponentials, logarithms,
# norms, long sums and losses go to float32. A few that combine tensors take the widest dtype among them. One,
# `binary_cross_entropy`, is refused: it is unsafe in 16 bits, and `binary_cross_entropy_with_logits` is its safe form. All others run in whatever they are given.
#
# Why is a *sum* on the float32 list? Inside, PyTorch's kernels sum in float32 anyway. What would be lost is in the
# *result*: 70,000 ones are infinity in float16. And a sum that kept its running total in 16 bits too would stop much
# earlier:

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.precision.amp import GPU_POLICY, Treatment


def sum_of_ones(format, count):
    total, path = 0.0, []
    for _ in range(count):
        total = float(format.rounded(total + 1.0))
        path.append(total)
    return path


assert torch.ones(10_000, dtype=torch.float16).sum() == 10_000  # a float16 running total would stop at 2,048
assert torch.ones(70_000, dtype=torch.float16).sum().isinf()
fig, (left, right) = figure(1, 2, width=12.5, height=3.4)
for name, count in (("float16", 3000), ("bfloat16", 3000), ("float8_e5m2", 3000)):
    path = sum_of_ones(FLOAT_FORMATS[name], count)
    left.plot(range(1, count + 1), path, color=COLOURS[name], label=f"{name}: stops at {path[-1]:,.0f}")
    assert path[-1] == 2 ** (FLOAT_FORMATS[name].mantissa_bits + 1)
left.set(xlabel="ones added", ylabel="sum", title="A running sum of ones", xscale="log", yscale="log")
left.legend(loc="upper left")
grid = np.linspace(-14, 14, 400)
for name in ("float16", "bfloat16"):
    exponentials = FLOAT_FORMATS[name].rounded(np.exp(FLOAT_FORMATS[name].rounded(grid)))
    shown = np.where(np.isfinite(exponentials) & (exponentials > 0), exponentials / np.exp(grid) - 1, np.nan)
    right.plot(grid, 100 * shown, color=COLOURS[name], label=name, lw=1.2)
right.axvspan(np.log(FP16.largest), 14, color=palette.vermillion, alpha=0.15, lw=0)
right.text(np.log(FP16.largest) - 0.3, 5.2, "float16: infinite", ha="right", fontsize=10, color=palette.vermillion)
right.set(xlabel="x", ylabel="error of exp(x), %", title="An exponential of a rounded number", ylim=(-6, 6))
right.legend(loc="upper center")
show.figure(fig)

# %% tags=["demo"] jupyter={"source_hidden": true}
a, b = torch.randn(16, 16), torch.randn(16, 16)
TRY = {
    "linear": lambda: functional.linear(a, b),
    "matmul": lambda: a @ b,
    "conv2d": lambda: functional.conv2d(a.view(1, 1, 16, 16), b.view(1, 1, 16, 16)),
    "scaled_dot_product_attention": lambda: functional.scaled_dot_product_attention(
        *(t.view(1, 1, 16, 16) for t in (a, b, a))
    ),
    "relu": lambda: functional.relu(a.bfloat16()),
    "softmax": lambda: torch.softmax(a.bfloat16(), -1),
    "layer_norm": lambda: functional.layer_norm(a.bfloat16(), (16,)),
    "exp": lambda: torch.exp(a.bfloat16()),
    "sum": lambda: a.bfloat16().sum(),
    "mse_loss": lambda: functional.mse_loss(a.bfloat16(), b.bfloat16()),
    "cat": lambda: torch.cat([a, b.bfloat16()]),
}
WORDS = {
    Treatment.LOW: "16 bits",
    Treatment.FLOAT32: "float32",
    Treatment.PROMOTE: "the widest",
    Treatment.AS_IS: "as given",
}
rows = []
for operator, call in TRY.items():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = str(call().dtype).removeprefix("torch.")
    rows.append([operator, WORDS[GPU_POLICY.treatment(operator)], found])
show.table(rows, ["operator", "the policy for GPUs", "autocast on a CPU returned"])
assert all(found == "bfloat16" for _, words, found in rows if words == "16 bits")
show.table(
    [[treatment.name.lower(), len(names), treatment.value] for treatment, names in (
        (Treatment.LOW, GPU_POLICY.low), (Treatment.FLOAT32, GPU_POLICY.float32), (Treatment.PROMOTE, GPU_POLICY.promote), (Treatment.REFUSED, GPU_POLICY.refused))],
    ["list", "operators", "what happens"],
)  # fmt: skip

# %% [markdown]
# An exponential turns the absolute error of its argument into a relative error of its result. Near x = 10 bfloat16 rounds x
# by up to 1/32, and exp(x) is off by up to 3%. And from x = 11.1 on float16 has no number for it.
#
# In the table the two columns differ, and neither is a mistake: PyTorch keeps a policy for each kind of device, and the one for CPUs
# leaves softmax, norms, sums and exponentials in bfloat16. A model whose numerics were validated under autocast on one
# kind of device has been validated on that kind.
#
# ## Deep dive: rounding with a coin
#
# Masters cost four bytes a parameter. There is a way to do without: round up with a probability equal to the part that
# would be cut off. A single update of 1/4096 to a bfloat16 weight of 1 is then lost in 31 of 32 cases, and in the other
# it counts for 1/128, thirty-two times as much. On average, nothing is lost.

# %% tags=["demo"] jupyter={"source_hidden": true}
coin = np.random.default_rng(2)
WALKS = 200
at, history = np.ones(WALKS), []
for _ in range(STEPS):
    at = BF16.rounded(at + UPDATE, "stochastic", coin)
    history.append(at)
history = np.array(history)
chance = UPDATE / BF16.epsilon
deviation = BF16.epsilon * np.sqrt(STEPS * chance * (1 - chance))
fig, axes = figure(width=10, height=3.5)
steps = np.arange(1, STEPS + 1)
band = BF16.epsilon * np.sqrt(steps * chance * (1 - chance))
axes.fill_between(
    steps,
    1 + UPDATE * steps - 2 * band,
    1 + UPDATE * steps + 2 * band,
    color=palette.sky,
    alpha=0.35,
    lw=0,
    label="two standard deviations",
)
for walk in range(5):
    axes.plot(
        steps, history[:, walk], color=palette.purple, lw=0.8, label="rounded stochastically" if walk == 0 else None
    )
axes.plot(steps, 1 + UPDATE * steps, color=palette.ink, lw=1.5, label="exact")
axes.plot(steps, np.ones(STEPS), color=palette.orange, label="rounded to nearest")
axes.set(xlabel="step", ylabel="weight", title="The same 4,096 updates, in bfloat16 without masters")
axes.legend(loc="upper left")
show.figure(fig)
final = history[-1]
print(
    f"exact 2.0; mean of {WALKS} walks {final.mean():.4f}; standard deviation {final.std():.4f}, of independent coins {deviation:.4f}"
)
assert abs(final.mean() - 2.0) < 5 * deviation / np.sqrt(WALKS)
assert 0.8 < final.std() / deviation < 1.2

# %% [markdown]
# It is unbiased and noisy: the deviation grows with the root of the number of steps, the lost updates grew with the
# number itself. In the study above the dashed line is exactly this. Its price is a random number for each weight and step.

# %% [markdown]
# ## In your own words
#
# A colleague trains in float16 with a loss scaler. After 20,000 good steps the scale, which had been at 2¹⁵ for hours,
# falls by half at every step and reaches 2⁻²⁰ within a minute. Nothing in the code was changed. What are three possible
# causes? For each: what would you look at to tell it from the others, and what would you do? And which of the three would
# have happened in bfloat16 as well?

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# *Your answer. A paragraph for each cause.*

# %% [markdown]
# ## What to remember
#
# - The exponent buys **range**, the mantissa **precision**. float16 runs out of the first, bfloat16 out of the second, FP8
#   out of both.
# - Codes count magnitudes in ascending order. Rounding is an integer affair: units in the last place, ties to even, and a
#   carry that runs into the exponent is right.
# - Round **once**. By way of a third format you may land on the wrong neighbour.
# - Underflow gives zero, silently. Overflow gives infinity, and infinity gives NaN: that is what a loss scaler listens for.
#   One bad element skips the whole step.
# - An update below half a spacing is not felt. **Weights want float32 masters** (or a coin), whatever the
#   products are computed in. PyTorch's optimisers do not keep them for you.
# - FP8 needs a scale for each tensor. Take it from the past, take the largest, and expect to be wrong once in a while.
# - Autocast shrinks what is saved for the backward pass, to half at best: what float32 operators save stays large.
#   Weights, gradients and states stay as large as they were.
#
# Next: `06_memory_budget`. Sixteen bytes a parameter, and then the activations.
