"""Numbers for people have a unit of fitting size."""

import pytest
from threeloops.units import readable_bytes, readable_count, readable_duration, readable_seconds, time_unit


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (3.4e-6, "3.4 µs"), (0.0047357, "4.736 ms"), (1e-3, "1 ms"), (1.0, "1 s"), (60.0, "60 s")],
)
def test_seconds_are_readable_in_the_unit_of_their_axis(seconds, text):
    assert readable_seconds(seconds) == text and time_unit(seconds)[1] == text.split()[1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "500 ms"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (5e5, "5.79 days")],
)
def test_durations_are_what_people_plan_by(seconds, text):
    assert readable_duration(seconds) == text
