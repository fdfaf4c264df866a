"""The notice beside what is timed here: there where other programs use the processors, absent where they do not."""

import psutil
import pytest
from threeloops.lab import predict, show
from threeloops.lab.predictions import questions


@pytest.fixture
def load(monkeypatch):
    """Sets how much of the processors other programs use, in percent."""

    def used(percent):
        monkeypatch.setattr(psutil, "cpu_percent", lambda interval: percent)

    return used


def test_a_busy_machine_is_said_to_be_busy(load, capsys):
    load(63.0)
    show.busy_notice()
    assert "other programs use 63% of its processors" in capsys.readouterr().out


def test_an_idle_machine_is_not_mentioned(load, capsys):
    load(4.0)
    show.busy_notice()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("unit", "source", "said"),
    [
        ("ms", "measured here", True),
        ("GB/s", "measured here, 256 MiB", True),
        ("ms", "recorded on an H100", False),
        ("%", "measured here, emulated", False),
        ("cycles", "measured here", False),
    ],
)
def test_it_stands_beside_times_and_rates_that_were_measured_here(load, capsys, unit, source, said):
    load(90.0)
    questions.asked.clear()
    predict("key", "How much?", unit=unit)
    show.against_prediction("key", 3.0, source=source)
    assert ("This machine is busy" in capsys.readouterr().out) is said
