"""bfloat16 and fp8 in numpy, against rational arithmetic: the nearest representable number, the even one if two are."""

from bisect import bisect_left, bisect_right
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.inner.interpreter.formats import _FP8E4NV, _FP8E5, BF16, FORMATS, multiply_add, round_toward_zero

TORCH = {"bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
FLOAT64 = st.one_of(
    st.floats(allow_nan=False),
    st.floats(-600, 600),
    st.floats(-1e-2, 1e-2),
    st.tuples(st.integers(-(2**12), 2**12), st.integers(-30, 12)).map(lambda pair: pair[0] * 2.0 ** pair[1]),
)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def patterns(format):
    return np.arange(2**format.exact.bits, dtype=format.exact.storage)


def as_torch(bits, format):
    signed = torch.from_numpy(bits.view(np.int16 if format is BF16 else np.int8))
    return signed.view(TORCH[format.name])


def nearest(exact, finite):
    """The place in the ascending list `finite` of the number nearest to |exact|; beyond the last one, len(finite)."""
    magnitude = abs(exact)
    above = bisect_left(finite, magnitude)
    if above == len(finite):
        return len(finite) - (magnitude < finite[-1] + (finite[-1] - finite[-2]) / 2)
    if finite[above] == magnitude:
        return above
    to_lower, to_upper = magnitude - finite[above - 1], finite[above] - magnitude
    return above - (to_lower < to_upper or (to_lower == to_upper and (above - 1) % 2 == 0))


def magnitudes(format):
    values = format.decode(patterns(format)[: 2 ** (format.exact.bits - 1)])
    return [Fraction(float(value)) for value in values[np.isfinite(values)]]


MAGNITUDES = {name: magnitudes(format) for name, format in FORMATS.items()}


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_every_pattern_means_what_torch_says(format):
    bits = patterns(format)
    np.testing.assert_array_equal(format.decode(bits), as_torch(bits, format).float().numpy())


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_every_value_is_its_own_pattern(format):
    bits = patterns(format)
    values = format.decode(bits)
    kept = np.isfinite(values)
    if format is BF16:
        kept |= np.isinf(values)
    assert (format.encode(values) == bits)[kept].all()
    assert (format.encode(values, toward_zero=True) == bits)[kept].all()


@settings(max_examples=300)
@given(st.lists(FLOAT64, min_size=1, max_size=30), st.sampled_from(list(FORMATS)))
def test_float64_rounds_to_the_nearest_number(given_values, name):
    format, finite = FORMATS[name], MAGNITUDES[name]
    values = np.array(given_values)
    decoded = format.decode(format.encode(values))
    largest = float(finite[-1])
    for value, result in zip(values, decoded, strict=True):
        place = len(finite) if np.isinf(value) else nearest(Fraction(float(value)), finite)
        beyond = np.inf if format is BF16 else largest
        assert abs(result) == (beyond if place == len(finite) else float(finite[place])), value
        assert np.signbit(result) == np.signbit(value)


@given(st.lists(FLOAT64.filter(np.isfinite), min_size=1, max_size=30), st.sampled_from(list(FORMATS)))
def test_toward_zero_takes_the_next_smaller_magnitude(given_values, name):
    values = np.array(given_values)
    decoded = FORMATS[name].decode(FORMATS[name].encode(values, toward_zero=True))
    for value, result in zip(values, decoded, strict=True):
        next_above = bisect_right(MAGNITUDES[name], abs(Fraction(value)))
        assert abs(float(result)) == float(MAGNITUDES[name][next_above - 1])


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=200))
def test_float32_to_bf16_and_e4m3_is_torch_s(bits):
    values = np.array(bits, dtype=np.uint32).view(np.float32)
    for format in (BF16, _FP8E4NV):
        ours = format.decode(format.encode(values))
        np.testing.assert_array_equal(ours, torch.from_numpy(values).to(TORCH[format.name]).float().numpy())


def test_e5m2_saturates_where_torch_overflows():
    values = np.array([57344, 61439, 61440, 1e9, np.inf, -np.inf, np.nan], dtype=np.float32)
    np.testing.assert_array_equal(_FP8E5.decode(_FP8E5.encode(values)), [57344] * 5 + [-57344, np.nan])
    assert torch.from_numpy(values).to(torch.float8_e5m2).float()[2] == torch.inf


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_nan_stays_nan_whatever_its_payload(format, dtype):
    width = np.dtype(dtype).itemsize * 8
    unsigned = np.dtype(f"uint{width}").type
    infinity = int(np.array(np.inf, dtype=dtype).view(unsigned))
    payloads = np.array([infinity + 1, infinity + (1 << (width // 4)), 2**width - 1], dtype=unsigned).view(dtype)
    assert np.isnan(format.decode(format.encode(payloads))).all()
    assert np.isnan(format.decode(format.encode(payloads, toward_zero=True))).all()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30))
def test_integers_round_once(integers):
    for dtype in (np.int64, np.uint64, np.int32, np.int8):
        values = np.array(integers, dtype=np.int64).astype(dtype)
        decoded = BF16.decode(BF16.encode(values))
        for value, result in zip(values.tolist(), decoded, strict=True):
            place = nearest(Fraction(value), MAGNITUDES["bf16"])
            assert Fraction(float(result)) == (-1 if value < 0 else 1) * MAGNITUDES["bf16"][place]


def test_an_integer_just_above_a_tie_rounds_up():
    for shift in (30, 54):  # within float64's 53 bits, and beyond
        tie = (2**8 + 1) << shift  # nine bits: halfway between two bfloat16 numbers
        for sign in (1, -1):
            rounded = BF16.decode(BF16.encode(sign * np.array([tie, tie + 1, tie - 1])))
            assert rounded.tolist() == [sign * (each << shift) for each in (2**8, 2**8 + 2, 2**8)]


@given(FLOAT32, FLOAT32, FLOAT32)
def test_a_fused_multiply_add_is_rounded_once(x, y, z):
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    arrays = [np.array([each], dtype=np.float32) for each in (x, y, z)]
    fused = multiply_add(*arrays)
    with np.errstate(over="ignore"):
        single = fused.astype(np.float32)[0]
    if np.isfinite(single):
        with np.errstate(over="ignore"):
            neighbours = [np.nextafter(single, np.float32(way)) for way in (-np.inf, np.inf)]
        distance = abs(Fraction(float(single)) - exact)
        assert all(distance <= abs(Fraction(float(each)) - exact) for each in neighbours if np.isfinite(each))
    place = nearest(exact, MAGNITUDES["bf16"])
    expected = np.inf if place == len(MAGNITUDES["bf16"]) else float(MAGNITUDES["bf16"][place])
    assert abs(BF16.decode(BF16.encode(fused))[0]) == expected


def test_a_fused_multiply_add_sees_what_a_sum_in_float64_loses():
    x = np.array([1 + 2**-12], dtype=np.float32)
    tie = x * x  # 1 + 2⁻¹¹ + 2⁻²⁴: halfway between two float32 numbers
    assert multiply_add(x, x, np.float32([2**-80])).astype(np.float32)[0] == np.nextafter(tie[0], np.float32(2))
    assert multiply_add(x, x, np.float32([0])).astype(np.float32)[0] == tie[0]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_cutting_off_never_grows(values):
    values = np.array(values)
    with np.errstate(over="ignore"):
        for dtype in (np.float16, np.float32):
            cut = round_toward_zero(values, dtype)
            assert np.isfinite(cut).all() and (np.abs(cut) <= np.abs(values)).all()
            next_up = np.nextafter(np.abs(cut), dtype(np.inf))
            assert ((next_up > np.abs(values)) | np.isinf(next_up)).all()
