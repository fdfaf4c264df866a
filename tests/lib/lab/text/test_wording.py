"""Numbers as a person prints them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.lab.text.wording import number, number_pair, printed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0, "0"),
        (3.0, "3"),
        (16896, "16,896"),
        (8192.0, "8,192"),
        (12_500_000.0, "12,500,000"),
        (15.8732, "15.87"),
        (0.944, "0.944"),
        (1234.56, "1,235"),
        (999.96, "1,000"),
        (-0.05, "−0.05"),
        (-2000, "−2,000"),
        (2.98e-08, "2.98 × 10⁻⁸"),
        (1e-12, "1 × 10⁻¹²"),
        (2**60, "1.15 × 10¹⁸"),
        (0.001, "0.001"),
    ],
)
def test_a_number_as_a_person_prints_it(value, text):
    assert printed(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (21.1479, "21.15"),
        (5000.0, "5,000"),
        (9999.9, "10,000"),
        (12345.67, "12,346"),
        (1_234_567, "1,234,567"),
        (1_234_567.8, "1.235e+06"),
        (10**400, f"{10**400:,}"),
        (0.00012345, "0.0001234"),
        (float("nan"), "nan"),
        (True, "True"),
        (1 + 2j, "1+2j"),
    ],
)
def test_a_number_in_a_message_has_four_digits(value, text):
    assert number(value) == text


def test_two_numbers_have_as_many_digits_as_tell_them_apart():
    assert number_pair(21.1479, 23.0) == ("21.15", "23")
    assert number_pair(21.1479, 21.1481) == ("21.1479", "21.1481")


@given(st.floats(-1e20, 1e20, allow_nan=False))
def test_what_is_printed_is_the_number_to_half_a_percent(value):
    text = printed(value).replace("−", "-").replace(",", "")
    digits, _, power = text.partition(" × 10")
    power = power.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    assert float(digits) * 10.0 ** int(power or 0) == pytest.approx(value, rel=5.1e-3)
