"""Number formats, bit for bit: against torch on every code of 8 and 16 bits, against fractions everywhere else."""

import math
from bisect import bisect_left, bisect_right
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from threeloops.inner.precision.formats import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT16,
    FLOAT32,
    FLOAT_FORMATS,
    TF32,
    FloatFormat,
)

OLD_E4M3FN = bool(torch.tensor(1e9).to(torch.float8_e4m3fn).float().isnan())
"""Whether this torch makes NaN of what float8_e4m3fn cannot hold, as it did up to 2.11."""
TORCH_E4M3FN = replace(FLOAT8_E4M3FN, overflow="nan") if OLD_E4M3FN else FLOAT8_E4M3FN
SMALL = [FLOAT16, BFLOAT16, TORCH_E4M3FN, FLOAT8_E5M2]
SIGNED = {8: np.int8, 16: np.int16}
UNUSUAL = [FloatFormat("e3m4", 3, 4), FloatFormat("e2m3fn", 2, 3, has_infinity=False, overflow="saturate")]
REAL = st.one_of(
    st.floats(allow_nan=False),
    st.floats(-600, 600),
    st.floats(-1e-2, 1e-2),
    st.tuples(st.integers(-(2**12), 2**12), st.integers(-160, 120)).map(lambda pair: pair[0] * 2.0 ** pair[1]),
)


def name_of(format):
    return format.name


def to_torch(values, format):
    """Codes that torch's cast makes of an array, as int64."""
    cast = torch.from_numpy(np.ascontiguousarray(values)).to(getattr(torch, format.name))
    return cast.view(torch.int16 if format.bits == 16 else torch.uint8).numpy().astype(np.int64) % 2**format.bits


def from_torch(codes, format):
    return torch.from_numpy(codes.astype(f"u{format.bits // 8}").view(SIGNED[format.bits])).view(
        getattr(torch, format.name)
    )


def same(ours, theirs, format):
    """Equal codes, where any NaN equals any other."""
    ours, theirs = format.decode(ours), format.decode(theirs)
    return bool(
        ((ours == theirs) & (np.signbit(ours) == np.signbit(theirs)) | (np.isnan(ours) & np.isnan(theirs))).all()
    )


def encode_exactly(value, format):
    """The code by a search among all magnitudes and rational arithmetic: no bit of it is shared with the library."""
    magnitudes = table(format)
    sign = 2 ** (format.bits - 1) if math.copysign(1, value) < 0 else 0
    if math.isnan(value):
        return sign + 2 ** (format.bits - 1) - 1
    above = bisect_left(magnitudes, abs(value))
    if above == len(magnitudes):
        tie = magnitudes[-1] + (magnitudes[-1] - magnitudes[-2]) / 2
        place = above if abs(value) > tie or (abs(value) == tie and above % 2 == 0) else above - 1
    elif magnitudes[above] == abs(value):
        place = above
    else:
        exact = abs(Fraction(value))
        up, down = Fraction(magnitudes[above]) - exact, exact - Fraction(magnitudes[above - 1])
        place = above if up < down or (up == down and above % 2 == 0) else above - 1
    if place == len(magnitudes):
        place = {"infinity": place, "saturate": place - 1, "nan": 2 ** (format.bits - 1) - 1}[format.overflow]
    return sign + place


TABLES = {}


def table(format):
    """Magnitudes from the definition, one code at a time."""
    if format not in TABLES:
        bias, found = 2 ** (format.exponent_bits - 1) - 1, []
        for field in range(2**format.exponent_bits - (1 if format.has_infinity else 0)):
            for mantissa in range(2**format.mantissa_bits):
                one = 1 if field else 0
                found.append((one + mantissa / 2**format.mantissa_bits) * 2.0 ** (max(field, 1) - bias))
        TABLES[format] = found if format.has_infinity else found[:-1]
    return TABLES[format]


@pytest.mark.parametrize("format", SMALL, ids=name_of)
def test_every_code_means_what_torch_says(format):
    codes = np.arange(2**format.bits)
    np.testing.assert_array_equal(format.decode(codes), from_torch(codes, format).double().numpy())


@pytest.mark.parametrize("format", SMALL, ids=name_of)
def test_every_value_its_midpoints_and_their_neighbours_become_torch_s_code(format):
    magnitudes = format.magnitudes()
    beyond = magnitudes[-1] + (magnitudes[-1] - magnitudes[-2]) * np.array([0.25, 0.5, 0.75, 1, 2])
    middle = (magnitudes[1:] + magnitudes[:-1]) / 2
    with np.errstate(over="ignore"):
        exact = np.concatenate([magnitudes, middle, beyond]).astype(np.float32)
        around = [np.nextafter(exact, np.float32(way)) for way in (np.inf, -np.inf)]
    positive = np.concatenate([exact, *around])
    values = np.concatenate([positive, -positive, np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1e38, -1e38])])
    assert same(format.encode(values), to_torch(values, format), format)


@pytest.mark.parametrize("format", [*SMALL, *UNUSUAL], ids=name_of)
def test_midpoints_and_their_float64_neighbours_are_rounded_once(format):
    magnitudes = format.magnitudes()
    picked = np.random.default_rng(0).integers(0, magnitudes.size - 1, 400)
    middle = (magnitudes[picked] + magnitudes[picked + 1]) / 2
    for values in (middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf), -middle):
        assert format.encode(values).tolist() == [encode_exactly(float(v), format) for v in values]


def test_torch_rounds_float64_twice_and_this_does_not():
    value = 1 + 2.0**-11 + 2.0**-40  # float32 cuts the last bit off, and leaves a tie
    assert torch.tensor(value, dtype=torch.float64).to(torch.float16).item() == 1.0
    assert FLOAT16.rounded(value) == 1 + 2.0**-10 == np.float16(value)


@settings(max_examples=100)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200))
@example([0x7F800001, 0x7FC00000, 0xFFC00000, 0xFF800001, 0x7FFFFFFF, 0x80000000, 1, 0x80000001, 0x807FFFFF])
def test_any_float32_becomes_torch_s_code(bits):
    values = np.array(bits, np.uint32).view(np.float32)
    for format in SMALL:
        assert same(format.encode(values), to_torch(values, format), format)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        np.testing.assert_array_equal(FLOAT32.rounded(values), values.astype(np.float64))


@settings(max_examples=150)
@given(st.lists(REAL, min_size=1, max_size=20), st.sampled_from([*SMALL, *UNUSUAL]))
def test_any_float64_becomes_the_nearest_number(values, format):
    assert format.encode(values).tolist() == [encode_exactly(v, format) for v in values]


@settings(max_examples=100)
@given(st.lists(REAL, min_size=1, max_size=20))
def test_float32_and_float16_are_numpy_s(values):
    with np.errstate(over="ignore"):
        single, half = np.array(values).astype(np.float32), np.array(values).astype(np.float16)
    assert (FLOAT32.encode(values) == single.view(np.uint32)).all()
    assert (FLOAT16.encode(values) == half.view(np.uint16)).all()


@settings(max_examples=100)
@given(st.lists(REAL.filter(math.isfinite), min_size=1, max_size=20), st.sampled_from([*SMALL, *UNUSUAL]))
def test_toward_zero_takes_the_next_smaller_magnitude(values, format):
    for value, got in zip(values, format.rounded(values, "toward-zero"), strict=True):
        assert abs(got) == table(format)[bisect_right(table(format), abs(value)) - 1]
        assert np.signbit(got) == np.signbit(value)


@pytest.mark.parametrize("format", SMALL, ids=name_of)
def test_stochastic_rounding_takes_a_neighbour_and_is_right_on_average(format):
    low, high = 1.0, 1.0 + format.epsilon
    value = 0.7 * low + 0.3 * high
    drawn = format.rounded(np.full(40_000, value), "stochastic", np.random.default_rng(0))
    assert set(drawn.tolist()) == {low, high}
    assert abs((drawn == high).mean() - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 40_000)
    again = format.rounded(np.full(40_000, value), "stochastic", np.random.default_rng(0))
    np.testing.assert_array_equal(drawn, again)


def test_stochastic_rounding_keeps_what_is_representable():
    numbers = FLOAT8_E4M3FN.magnitudes()
    generator = np.random.default_rng(1)
    np.testing.assert_array_equal(FLOAT8_E4M3FN.rounded(numbers, "stochastic", generator), numbers)


@pytest.mark.parametrize(
    ("format", "largest", "normal", "subnormal", "epsilon"),
    [
        (FLOAT32, (2 - 2**-23) * 2.0**127, 2.0**-126, 2.0**-149, 2.0**-23),
        (TF32, (2 - 2**-10) * 2.0**127, 2.0**-126, 2.0**-136, 2.0**-10),
        (FLOAT16, 65504.0, 2.0**-14, 2.0**-24, 2.0**-10),
        (BFLOAT16, (2 - 2**-7) * 2.0**127, 2.0**-126, 2.0**-133, 2.0**-7),
        (FLOAT8_E4M3FN, 448.0, 2.0**-6, 2.0**-9, 2.0**-3),
        (FLOAT8_E5M2, 57344.0, 2.0**-14, 2.0**-16, 2.0**-2),
    ],
    ids=FLOAT_FORMATS,
)
def test_the_numbers_that_describe_a_format(format, largest, normal, subnormal, epsilon):
    assert (format.largest, format.smallest_normal) == (largest, normal)
    assert (format.smallest_subnormal, format.epsilon) == (subnormal, epsilon)
    if format is not TF32:
        about = torch.finfo(getattr(torch, format.name))
        assert (about.max, about.tiny, about.eps) == (largest, normal, epsilon)


def test_overflow_goes_where_the_format_says():
    big = [448.0, 464.0, 464.1, 1e9, np.inf, -1e9]
    assert FLOAT8_E4M3FN.rounded(big).tolist() == [448] * 5 + [-448]
    old = replace(FLOAT8_E4M3FN, overflow="nan").encode(big)
    assert old.tolist() == [126, 126, 127, 127, 127, 255]
    assert FLOAT8_E5M2.rounded([61439.9, 61440.0, -1e9]).tolist() == [57344, np.inf, -np.inf]
    assert FLOAT16.rounded([65519.9, 65520.0]).tolist() == [65504, np.inf]
    assert FLOAT16.rounded([1e9, np.inf], "toward-zero").tolist() == [65504, np.inf]


def test_spacing_is_the_distance_to_the_next_number():
    numbers = FLOAT8_E5M2.magnitudes()
    np.testing.assert_array_equal(FLOAT8_E5M2.spacing(numbers[:-1]), np.diff(numbers))
    assert BFLOAT16.spacing([1.0, -1.99, 256.0]).tolist() == [2**-7, 2**-7, 2.0]


def test_shape_storage_and_integers():
    assert FLOAT16.encode(np.zeros((3, 0, 2))).shape == (3, 0, 2)
    assert [f.encode(1.0).dtype for f in (FLOAT8_E5M2, BFLOAT16, TF32)] == [np.uint8, np.uint16, np.uint32]
    assert BFLOAT16.rounded(np.arange(255, 260)).tolist() == [255, 256, 256, 258, 260]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: FloatFormat("x", 9, 3), ValueError, "exponent_bits = 9"),
        (lambda: FloatFormat("x", 4, 0), ValueError, "mantissa_bits = 0"),
        (lambda: FloatFormat("x", 4, 3, has_infinity=False), ValueError, "no infinity"),
        (lambda: FLOAT16.encode(1.0, "up"), ValueError, "rounding = 'up'"),
        (lambda: FLOAT16.encode(1.0, "stochastic"), ValueError, "generator = None"),
        (lambda: FLOAT16.encode(1.0, generator=np.random.default_rng(0)), ValueError, "expected None"),
        (lambda: FLOAT16.encode(np.array([0, 2**60])), ValueError, "2\\*\\*53"),
        (lambda: FLOAT16.encode("1"), TypeError, "values of dtype"),
        (lambda: FLOAT8_E5M2.decode([256]), ValueError, "code 256"),
        (lambda: FLOAT8_E5M2.decode([0.5]), TypeError, "float64"),
        (lambda: FLOAT32.magnitudes(), ValueError, "32 bits"),
    ],
)
def test_what_is_refused(call, error, words):
    with pytest.raises(error, match=words.replace("(", r"\(")):
        call()
