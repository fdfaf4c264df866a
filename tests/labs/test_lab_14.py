"""Lab 14: the numbers of its prose, and the drawings."""

import math

import pytest
from threeloops.lab.drawings import draw_accounts, draw_delay, log_account, travelling
from threeloops.lab.drawings.training.failures import _log_stretches, draw_log, draw_new_parts
from threeloops.training.elastic.goodput import best_interval, spares_needed, useful_share

HOUR = 3600.0


def test_the_worked_example_of_a_job_of_parts():
    assert 43_800 / 1000 == 43.8
    assert math.exp(-24 / 43.8) == pytest.approx(0.578, abs=5e-4)
    assert pytest.approx(41.2, abs=0.05) == 1 / (1000 / 43_800 + 125 / 87_600)


@pytest.mark.parametrize(
    ("interval", "parts", "together"), [(300, (10.0, 0.5, 1.9), 12.4), (3600, (0.8, 5.7, 1.9), 8.4)]
)
def test_the_worked_example_of_two_intervals(interval, parts, together):
    wasted = [100 * each for each in (30 / interval, interval / 2 / 31536, 600 / 31536)]
    assert [round(each, 1) for each in wasted] == list(parts)
    assert round(sum(wasted), 1) == together


def test_what_the_debrief_says_of_a_flat_top():
    """Twice the best interval, or half of it, costs about one percent of the time."""
    best = best_interval(30, 31536)
    for factor in (0.5, 2):
        lost = useful_share(best, 30, 600, 31536) - useful_share(factor * best, 30, 600, 31536)
        assert 0.005 < lost < 0.015


@pytest.mark.parametrize(
    ("spares", "percent", "hours", "share", "worth"),
    [(1, 39, 5, 0.862, 0.853), (2, 9, 3.3, None, 0.919), (3, None, None, None, 0.922), (4, None, None, None, 0.914)],
)
def test_the_example_of_spares_in_the_dives(spares, percent, hours, share, worth):
    mean = 0.5
    none = 1 - sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(spares))
    recovery = 600 + none * 10 * HOUR / (spares + 1)
    useful = useful_share(2400, 60, recovery, 20 * HOUR)
    assert useful * 100 / (100 + spares) == pytest.approx(worth, abs=6e-4)
    if percent:
        assert round(100 * none) == percent and 10 / (spares + 1) == pytest.approx(hours, abs=0.05)
    if share:
        assert useful == pytest.approx(share, abs=6e-4) and round(recovery) == 7682


def test_the_spares_of_llama_3():
    assert spares_needed(54 * 24 * HOUR / 419, 24 * HOUR) == 16 and round(54 * 24 / 419, 1) == 3.1


def test_the_reflection():
    mtbf = 7 / 2 * 24 * HOUR
    assert mtbf == 84 * HOUR and best_interval(240, mtbf) / HOUR == pytest.approx(3.3, abs=0.05)
    assert pytest.approx(0.0625) == 240 / 3840


def test_what_travels_after_a_loss():
    assert travelling(12, 4, 1) == 1, "the example of the dives"
    for ranks in range(2, 9):
        assert travelling(840, ranks, 0) == 0, "ranks behind the lost one have what they need in their copies"
    assert travelling(840, 8, 6) > travelling(840, 8, 1) > 0


def test_work_has_its_fate_from_what_comes_later():
    events = [(20, "save"), (22, "saved"), (30, "failed"), (37, "running"), (40, "end")]
    assert [each.kind for each in _log_stretches(events, 21)] == ["not saved yet", "save"]
    assert _log_stretches(events, 40) == [
        (0.0, 20, "useful"), (20, 22, "save"), (22, 30, "lost"), (30, 37, "restart"), (37, 40, "lost"),
    ]  # fmt: skip
    account = {"useful": 20, "lost": 11, "save": 2, "restart": 7}
    assert log_account(events) == account
    labels = [text.get_text() for text in draw_accounts({"a": account}, {"a": 0.5}).axes[0].texts]
    assert labels == ["50.0%", "5.0%", "27.5%", "17.5%"]
    for until in (0, 21, 30, 40):
        assert sum(each.end - each.start for each in _log_stretches(events, until)) == until
        draw_log(events, until)
    for lost in range(4):
        assert f"{travelling(12, 4, lost)} of 12 elements travel" in draw_new_parts(12, 4, lost).axes[0].get_title(
            "left"
        )


def test_a_step_on_three_of_four_ranks():
    four, three = 3 / 16 + 6 / 64, 4 / 16 + 4 / 64
    assert (four, three) == (18 / 64, 20 / 64) and round(three / four, 2) == 1.11
    plot = draw_delay({"nobody dies": [("12 steps", 12 * four)], "a death": [("timeout", 8.0), ("regroup", 0.1)]})
    labels = [text.get_text() for text in plot.axes[0].texts]
    assert labels == ["12 steps: 3.38 s", "3.38 s", "timeout: 8.00 s", "", "8.10 s"]
