"""`check.close` against an oracle in exact rational arithmetic and, for arrays, against numpy's rule."""

import math
from fractions import Fraction

import hypothesis.extra.numpy as hnp
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.lab import CheckFailed, check

anything = st.floats(width=64)
near = st.tuples(st.floats(-1e6, 1e6), st.floats(-1e-5, 1e-5)).map(lambda p: (p[0] * (1 + p[1]), p[0]))
tolerances = st.sampled_from([0.0, 1e-12, 1e-6, 1e-3, 0.5])


def holds(actual, expected, **tolerance) -> bool:
    try:
        check.close(actual, expected, **tolerance)
    except CheckFailed:
        return False
    return True


def oracle(actual: float, expected: float, rtol: float, atol: float) -> bool | None:
    """None where the answer hangs on the last bits of float64 arithmetic."""
    if math.isnan(actual) or math.isnan(expected):
        return False
    if math.isinf(actual) or math.isinf(expected):
        return actual == expected
    difference = abs(Fraction(actual) - Fraction(expected))
    allowed = Fraction(atol) + Fraction(rtol) * abs(Fraction(expected))
    if difference and abs(difference - allowed) <= Fraction(1, 2**45) * (abs(Fraction(expected)) + allowed):
        return None
    if not math.isfinite(actual - expected):
        return False
    return difference <= allowed


@given(st.one_of(near, st.tuples(anything, anything)), tolerances, tolerances)
def test_one_number_against_exact_arithmetic(pair, rtol, atol):
    wanted = oracle(*pair, rtol, atol)
    if wanted is not None:
        assert holds(*pair, rtol=rtol, atol=atol) is wanted


@given(
    st.integers(0, 3).flatmap(lambda n: st.tuples(*[hnp.arrays(np.float64, (n, 3), elements=anything)] * 2)),
    tolerances,
    tolerances,
)
def test_arrays_and_tensors_hold_exactly_when_every_element_does(pair, rtol, atol):
    actual, expected = pair
    each = [oracle(float(a), float(e), rtol, atol) for a, e in zip(actual.flat, expected.flat, strict=True)]
    if None not in each:
        assert holds(actual, expected, rtol=rtol, atol=atol) is all(each)
        assert holds(torch.from_numpy(actual), expected.tolist() or expected, rtol=rtol, atol=atol) is all(each)


@given(st.integers(), st.integers(-3, 3))
def test_integers_of_any_size_are_equal_or_not(n, step):
    assert holds(n + step, n) is (step == 0)
    assert holds(n, n + step, atol=2) is (abs(step) <= 2)


@given(
    hnp.arrays(np.float64, hnp.array_shapes(max_dims=3, max_side=4), elements=st.floats(-1e6, 1e6)),
    hnp.array_shapes(max_dims=3, max_side=4),
)
def test_nothing_is_broadcast(actual, shape):
    assert holds(actual, np.zeros(shape), atol=1e7) is (actual.shape == shape)


@given(hnp.arrays(np.float32, 5, elements=st.floats(-100, 100, width=32)), st.integers(0, 4))
def test_the_worst_element_is_the_one_that_is_named(expected, index):
    actual = expected.astype(np.float64)
    actual[index] += 1000.0
    try:
        check.close(torch.from_numpy(actual), expected, atol=1e-3)
    except CheckFailed as error:
        assert f"at [{index}] (1 of 5" in str(error)
    else:
        raise AssertionError("an error of 1000 passed")
