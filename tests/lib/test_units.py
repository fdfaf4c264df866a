"""Numbers for people have a unit of fitting size."""

import pytest
from threeloops.units import readable_bytes, readable_count


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (8388608, "8 MiB"), (1536, "1.5 KiB"), (3 * 2**30, "3 GiB")]
)
def test_bytes_are_readable(number, text):
    assert readable_bytes(number) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0"), (999, "999"), (268435456, "268.4 M"), (2e12, "2 T")])
def test_counts_are_readable(number, text):
    assert readable_count(number) == text


def test_bytes_beyond_a_thousand_gibibytes_and_below_nothing():
    assert [readable_bytes(n) for n in (0, 1023, 1536, 3 * 2**30, 5 * 2**40, -1536)] == [
        "0 B", "1023 B", "1.5 KiB", "3 GiB", "5 TiB", "-1.5 KiB",
    ]  # fmt: skip
