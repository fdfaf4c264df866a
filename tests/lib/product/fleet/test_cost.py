"""Cost per million tokens, from what is paid for and what was served."""

import math
from dataclasses import replace

import pytest
from fleets import STEADY, every
from threeloops.product.fleet import Failure, Fleet, Price, Retries, cost_of, cost_per_million, simulate
from threeloops.product.loadgen import SLO

PRICE = Price(3.6, source="made up for a test", date="2026-11-25")
"""A thousandth per second."""


def test_a_million_tokens_of_a_thousand_per_second_are_a_thousand_seconds():
    assert cost_per_million(1000, 1_000_000, 3.6) == pytest.approx(1.0)
    assert cost_per_million(10, 10_000, 3.6) == pytest.approx(1.0)
    assert cost_per_million(10, 0, 3.6) == math.inf


@pytest.mark.parametrize("arguments", [(-1, 1, 1), (1, -1, 1), (1, 1, -1), (math.nan, 1, 1)])
def test_negative_quantities_are_refused(arguments):
    with pytest.raises(ValueError, match="expected at least 0"):
        cost_per_million(*arguments)


def test_a_run_is_paid_by_replica_seconds_and_divided_by_what_was_served():
    run = simulate(every(0.25, 200), Fleet(STEADY, 2))
    cost = cost_of(run, PRICE, SLO(ttft=1))
    assert cost.total == pytest.approx(2 * run.seconds / 1000)
    assert cost.per_million == pytest.approx(cost.total / 20_000 * 1e6) == cost.per_million_within_slo
    assert cost.attainment == 1 and 0.5 < cost.utilisation <= 1


def test_tokens_of_a_broken_try_are_paid_for_and_not_counted():
    fleet = Fleet(STEADY, 2, retries=Retries(tries=1), failures=(Failure(20.05),))
    broken, whole = (simulate(every(0.25, 200), each) for each in (fleet, replace(fleet, failures=())))
    assert broken.output_tokens == 20_000 - 100 * sum(broken.errors.values()) < whole.output_tokens
    assert cost_of(broken, PRICE, SLO()).per_million > cost_of(whole, PRICE, SLO()).per_million


def test_too_small_a_fleet_is_the_cheapest_per_token_and_the_dearest_per_token_in_time():
    arrivals, slo = every(0.05, 2000), SLO(ttft=1)
    small, large = (cost_of(simulate(arrivals, Fleet(STEADY, n)), PRICE, slo) for n in (2, 5))
    assert small.per_million < large.per_million
    assert small.per_million_within_slo > large.per_million_within_slo
    assert small.attainment < 0.5 < large.attainment == 1


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Price(0, "a", "b"), "per_hour = 0"),
        (lambda: Price(1, "", "2026"), "source = ''"),
        (lambda: Price(1, "list price", ""), "date = ''"),
    ],
)
def test_a_price_has_a_source_and_a_date(make, named):
    with pytest.raises(ValueError, match=named):
        make()
