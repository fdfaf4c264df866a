"""Numbers for people have a unit of fitting size."""

import pytest
from threeloops.units import readable, readable_bytes, readable_count, readable_duration, readable_seconds, time_unit


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


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (1234567.8, "USD", "$1,234,568"), (999.5, "USD", "$999.50"),
        (0.0904, "USD/kWh", "$0.0904/kWh"),
        (0, "USD", "$0"),
        (-31000, "USD", "−$31,000"), (0.6, "share", "60%"), (0.1, "share/year", "10%/year"),
        (0.99645, "share", "99.64%"),
        (512, "GPU", "512 GPUs"), (1, "GPU", "1 GPU"), (4096, "tokens", "4,096 tokens"),
        (2e12, "tokens", "2 T tokens"),
        (0.0233, "s", "23.3 ms"), (5400, "s", "90 min"), (8388608, "bytes", "8 MiB"),
        (31.4159, "days", "31.42 days"),
        (70553706496, "", "70,553,706,496"), (0.00012, "", "0.00012"),
    ],
)  # fmt: skip
def test_a_number_with_its_unit(value, unit, said):
    assert readable(value, unit) == said
