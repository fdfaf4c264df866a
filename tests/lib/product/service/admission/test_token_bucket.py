import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.product.service.admission import TokenBucket

EIGHTHS = st.integers(0, 80).map(lambda n: n / 8)
"""Numbers whose sums and products floats hold exactly, so that the bound can be tested without a tolerance."""

REQUESTS = st.lists(st.tuples(EIGHTHS, EIGHTHS), max_size=30)
"""Seconds since the request before, and the amount."""


def take(bucket, amount, now):
    """Charge the bucket if it has enough, and return how long one would have to wait otherwise."""
    wait = bucket.wait(amount, now)
    if not wait:
        bucket.charge(amount, now)
    return wait


def in_time(gaps_and_amounts):
    now = 0.0
    for gap, amount in gaps_and_amounts:
        now += gap
        yield now, amount


@given(REQUESTS, st.integers(0, 24).map(lambda n: n / 8), st.integers(1, 64).map(lambda n: n / 8))
def test_grants_exactly_what_no_window_forbids(requests, rate, burst):
    """The oracle knows no level: it tries every window that ends now."""
    bucket, granted = TokenBucket(rate, burst), []
    for now, amount in in_time(requests):
        windows = [
            sum(Fraction(a) for _, a in granted[i:]) + Fraction(amount) <= Fraction(burst) + Fraction(rate * (now - at))
            for i, (at, _) in enumerate([*granted, (now, amount)])
        ]
        got_it = take(bucket, amount, now) == 0
        assert got_it == all(windows)
        if got_it:
            granted.append((now, amount))


@given(REQUESTS, st.floats(1e-6, 1e6), st.floats(1e-3, 1e9), st.floats(0, 1e9))
def test_whoever_waits_as_told_gets_it_whatever_the_rounding(requests, rate, burst, begin):
    bucket = TokenBucket(rate, burst)
    for now, share in in_time(requests):
        amount = min(burst, burst * share / 10)
        wait = take(bucket, amount, begin + now)
        assert wait >= 0
        if wait:
            untouched = TokenBucket(rate, burst)
            untouched.__dict__.update(bucket.__dict__)
            assert take(untouched, amount, begin + now + wait) == 0


def test_the_wait_is_no_longer_than_needed():
    bucket = TokenBucket(rate=2, burst=10)
    assert take(bucket, 10, now=0) == 0
    assert take(bucket, 4, now=1) == 1
    assert take(bucket, 4, now=1.875) == 0.125
    assert take(bucket, 4, now=2) == 0


def test_a_refused_take_takes_nothing():
    bucket = TokenBucket(rate=1, burst=10)
    take(bucket, 8, now=0)
    for _ in range(100):
        assert take(bucket, 3, now=0) == 1
    assert take(bucket, 2, now=0) == 0


def test_a_charge_of_more_than_it_holds_is_refused_and_takes_nothing():
    bucket = TokenBucket(rate=1, burst=10)
    bucket.charge(8, now=0)
    with pytest.raises(ValueError, match=r"amount = 3: .*expected a charge after 1 s"):
        bucket.charge(3, now=0)
    assert bucket.wait(2, now=0) == 0


def test_a_bucket_never_holds_more_than_its_burst():
    bucket = TokenBucket(rate=1000, burst=5)
    assert take(bucket, 5, now=0) == 0
    assert take(bucket, 5, now=1e9) == 0
    assert take(bucket, 1, now=1e9) == pytest.approx(0.001)


def test_what_can_never_be_granted_has_an_infinite_wait():
    assert take(TokenBucket(rate=1, burst=5), 5.5, now=0) == math.inf
    once = TokenBucket(rate=0, burst=5)
    assert take(once, 5, now=0) == 0
    assert take(once, 1, now=1e9) == math.inf


def test_nothing_can_be_taken_at_any_time():
    bucket = TokenBucket(rate=0, burst=1)
    take(bucket, 1, now=0)
    assert take(bucket, 0, now=0) == 0


@given(st.lists(st.tuples(st.integers(-8, 8), st.integers(0, 5)), max_size=40))
def test_a_clock_that_jumps_to_and_fro_grants_no_more_than_its_latest_time_allows(jumps):
    bucket, now, latest, taken = TokenBucket(rate=1, burst=4), 0, 0, 1
    take(bucket, 1, now)
    for jump, requests in jumps:
        now += jump
        latest = max(latest, now)
        taken += sum(take(bucket, 1, now) == 0 for _ in range(requests))
        assert taken <= 4 + latest


def test_after_a_step_back_the_wait_counts_from_the_new_time():
    bucket = TokenBucket(rate=1, burst=2)
    take(bucket, 2, now=100)
    assert take(bucket, 1, now=90) == 11
    assert take(bucket, 1, now=101) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((-1, 5), "rate = -1"), ((math.nan, 5), "rate = nan"), ((math.inf, 5), "rate = inf"), ((1, 0), "burst = 0")],
)
def test_a_bucket_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        TokenBucket(*arguments)


@pytest.mark.parametrize("amount", [-1, math.nan, math.inf])
def test_an_amount_that_cannot_be_is_refused(amount):
    with pytest.raises(ValueError, match="amount = "):
        TokenBucket(1, 5).wait(amount, now=0)
