"""Demand over a day, and arrivals that follow it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.product.fleet import Demand, bursty_day
from threeloops.product.loadgen import uniform


def test_a_rate_lies_on_the_line_between_its_points_and_is_nothing_outside():
    demand = Demand((0, 10, 30), (2, 4, 0))
    assert [demand.rate(moment) for moment in (-1, 0, 5, 10, 20, 30, 31)] == [0, 2, 3, 4, 2, 0, 0]
    assert (demand.seconds, demand.peak, demand.requests) == (30, 4, 70)


@given(st.integers(0, 10**6), st.integers(0, 6), st.floats(0, 1), st.floats(1, 3))
def test_a_day_stays_between_trough_and_burst_and_is_the_same_for_the_same_seed(seed, bursts, trough, height):
    day = bursty_day(8, trough=trough, bursts=bursts, height=height, seed=seed)
    assert day == bursty_day(8, trough=trough, bursts=bursts, height=height, seed=seed)
    assert day.seconds == 86_400
    assert 8 * trough - 1e-9 <= min(day.rates) and day.peak <= 8 * height + 1e-9
    if not bursts:
        assert day.peak == pytest.approx(8) and day.rate(0) == pytest.approx(8 * trough)


def test_bursts_are_seen_and_the_wave_peaks_at_noon():
    quiet, bursty = bursty_day(bursts=0), bursty_day(bursts=4, height=2, seed=3)
    assert quiet.rate(43_200) == quiet.peak
    lifts = [bursty.rate(moment) / quiet.rate(moment) for moment in range(0, 86_400, 60)]
    rises = sum(before < 1.3 <= after for before, after in zip(lifts, lifts[1:], strict=False))
    assert rises == 4 and max(lifts) <= 2.001 and np.mean(np.array(lifts) > 1.01) < 0.2


def test_a_day_is_scaled_in_time_and_rate():
    day = bursty_day(10, seed=5)
    short = day.scaled(time=1 / 24, rate=3)
    assert short.seconds == 3600 and short.rate(1800) == pytest.approx(3 * day.rate(43_200))
    again = bursty_day(30, seconds=3600, seed=5)
    assert short.times == pytest.approx(again.times) and short.rates == pytest.approx(again.rates)


def test_arrivals_are_as_many_as_the_demand_at_every_time_of_the_day():
    """Of a Poisson process: within four standard deviations in each part."""
    day = bursty_day(40, seconds=600, seed=1)
    at = np.array([each.at for each in day.arrivals(uniform(1, 4), uniform(1, 4), seed=2)])
    assert (np.diff(at) > 0).all() and at[0] >= 0 and at[-1] < 600
    for begin in range(0, 600, 50):
        expected = np.mean([day.rate(moment) for moment in np.linspace(begin, begin + 50, 600)]) * 50
        assert abs(((begin <= at) & (at < begin + 50)).sum() - expected) < 4 * math.sqrt(expected)


def test_arrivals_repeat_and_share_prefixes():
    day = bursty_day(5, seconds=60, seed=1)
    arrivals = day.arrivals(uniform(10, 20), uniform(5, 9), prefixes=2, prefix_length=32, seed=4)
    assert arrivals == day.arrivals(uniform(10, 20), uniform(5, 9), prefixes=2, prefix_length=32, seed=4)
    assert {each.prompt[0] for each in arrivals} == {(0, 32), (1, 32)}
    own = [each.prompt[1][0] for each in arrivals]
    assert len(set(own)) == len(own) and not {0, 1} & set(own)
    assert all(len(each.prompt) == 1 for each in day.arrivals(uniform(1, 2), uniform(1, 2)))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Demand((0, 1), (1,)), "2 times and 1 rates"),
        (lambda: Demand((0, 5, 5), (1, 1, 1)), "times that rise from 0"),
        (lambda: Demand((1, 2), (1, 1)), "times that rise from 0"),
        (lambda: Demand((0, 1), (1, -1)), "none negative"),
        (lambda: Demand((0, 1), (0, 0)), "at least one above 0"),
        (lambda: bursty_day(0), "peak = 0"),
        (lambda: bursty_day(trough=2), "trough = 2"),
        (lambda: bursty_day(height=0.5), "height = 0.5"),
        (lambda: bursty_day(seconds=0), "seconds = 0"),
    ],
)
def test_what_is_no_demand_is_refused(make, named):
    with pytest.raises(ValueError, match=named):
        make()
