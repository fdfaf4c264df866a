import decimal
import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.training.elastic.goodput import (
    best_interval,
    cluster_mtbf,
    daly_first_order,
    daly_interval,
    expected_seconds,
    save_worth,
    spares_needed,
    useful_share,
    young_interval,
)

MINUTE, HOUR, YEAR = 60.0, 3600.0, 365 * 86400.0


def times_of_segments(interval, save, recovery, mtbf, flush, segments, seed=0):
    """The oracle: draw failures until each segment gets through, without any formula."""
    draws = np.random.default_rng(seed).exponential(mtbf, 60 * segments).tolist()
    total = 0.0
    for _ in range(segments):
        need = interval + save
        while (failure := draws.pop()) < need:
            total += failure
            need = recovery + interval + save + flush
        total += need
    return total / segments


@pytest.mark.parametrize(
    ("interval", "save", "recovery", "mtbf", "flush"),
    [(10, 1, 2, 40, 0), (10, 1, 0, 5, 0), (7, 3, 11, 90, 0), (10, 1, 2, 40, 6), (8, 0.5, 3, 30, 8)],
)
def test_expected_seconds_are_the_mean_over_drawn_failures(interval, save, recovery, mtbf, flush):
    drawn = times_of_segments(interval, save, recovery, mtbf, flush, 60_000)
    assert expected_seconds(interval, save, recovery, mtbf, flush) == pytest.approx(drawn, rel=0.02)
    assert useful_share(interval, save, recovery, mtbf, flush) == pytest.approx(interval / drawn, rel=0.02)


def test_without_failures_only_saves_cost():
    assert expected_seconds(90, 10, 500, 1e15) == pytest.approx(100, rel=1e-9)
    assert useful_share(90, 10, 500, 1e15, flush=40) == pytest.approx(0.9, rel=1e-9)


@pytest.mark.parametrize(("mtbf", "minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)])
def test_the_intervals_that_daly_prints(mtbf, minutes):
    """Figures 3 to 5: saves of 5 minutes."""
    assert daly_interval(5 * MINUTE, mtbf) / MINUTE == pytest.approx(minutes, rel=6e-3)


def test_youngs_and_dalys_first_order_intervals():
    assert young_interval(5, 1440) == 120
    assert daly_first_order(5, 1430, 10) == 120
    assert daly_interval(20, 10) == 10 and daly_interval(19.999, 10) != 10


@given(st.floats(1e-4, 3), st.floats(1, 1e6), st.floats(0, 2))
def test_no_other_interval_is_better(ratio, mtbf, recovery):
    save, recovery = ratio * mtbf, recovery * mtbf
    best = best_interval(save, mtbf)
    least = expected_seconds(best, save, recovery, mtbf) / best
    for factor in (0.5, 0.9, 0.999, 1.001, 1.1, 2):
        assert expected_seconds(best * factor, save, recovery, mtbf) / (best * factor) >= least * (1 - 1e-12)
    assert 0 < best < mtbf


@given(st.floats(1e-6, 0.5), st.floats(1, 1e6))
def test_how_near_the_approximations_are(ratio, mtbf):
    save = ratio * mtbf
    best = best_interval(save, mtbf)
    assert daly_interval(save, mtbf) == pytest.approx(best, rel=0.007)
    assert young_interval(save, mtbf) > best, "Young's is always too long: it counts the save as work"
    assert young_interval(save, mtbf) - save < best


@given(st.floats(1e-5, 2), st.floats(1, 1e6))
def test_the_save_that_an_interval_is_best_for(ratio, mtbf):
    assert save_worth(best_interval(ratio * mtbf, mtbf), mtbf) == pytest.approx(ratio * mtbf, rel=1e-6)


def test_claims_about_ten_thousand_gpus():
    """ft-1: a GPU fails every 10 years, 10,000 GPUs every 9 hours. ft-2: every 5 minutes is best only where a save
    stops the job for a second or two."""
    mtbf = cluster_mtbf(10 * YEAR, 10_000)
    assert mtbf / HOUR == pytest.approx(8.76)
    assert save_worth(5 * MINUTE, mtbf) == pytest.approx(1.436, rel=1e-3)
    assert best_interval(MINUTE, mtbf) / MINUTE == pytest.approx(31.8, rel=0.01)


def test_spares_needed_is_the_quantile_of_a_poisson_distribution():
    for mean in (0.3, 1.0, 4.5):
        for risk in (0.3, 0.05, 0.001):
            below = np.cumsum([math.exp(-mean) * mean**k / math.factorial(k) for k in range(40)])
            fewest = next(spares for spares in range(40) if (below[spares - 1] if spares else 0) >= 1 - risk)
            assert spares_needed(100, 100 * mean, risk) == fewest
    assert spares_needed(100, 0) == 1, "the node that failed needs one even if it is repaired at once"


@pytest.mark.parametrize(("mtbf", "repair"), [(1, 1), (1, 50), (10, 3), (1, 0.001), (1, 2000)])
@pytest.mark.parametrize("risk", [0.99, 0.01, 1e-15, 1e-16, 1e-30, 1e-300])
def test_a_risk_may_be_smaller_than_the_precision_of_floats(mtbf, repair, risk):
    """The oracle sums the tail with 700 digits."""
    with decimal.localcontext(prec=700):
        mean = Decimal(repair) / mtbf
        left, term, spares = Decimal(1), (-mean).exp(), 0
        while left > Decimal(risk):
            left, spares = left - term, spares + 1
            term *= mean / spares
    assert spares_needed(mtbf, repair, risk) == spares


def test_any_risk_below_one_needs_a_spare():
    assert spares_needed(1e9, 1, math.nextafter(1, 0)) == 1
    assert spares_needed(1, 1, 5e-324) > spares_needed(1, 1, 1e-300)


@pytest.mark.parametrize("ratio", [1e-9, 1e-12, 1e-15, 1e-18])
def test_how_exact_the_best_interval_is(ratio):
    """Beside the first terms of its series in √(2C/M)."""
    x = math.sqrt(2 * ratio)
    series = x - x**2 / 3 + x**3 / 36
    assert abs(best_interval(ratio, 1) / series - 1) < 4 * 2**-52 / x + x**3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cluster_mtbf(1, 0), "nodes = 0"),
        (lambda: cluster_mtbf(math.inf, 1), "node_mtbf = inf"),
        (lambda: young_interval(0, 1), "save = 0"),
        (lambda: best_interval(1, -1), "mtbf = -1"),
        (lambda: expected_seconds(1, 1, -1, 1), "recovery = -1"),
        (lambda: expected_seconds(0, 1, 1, 1), "interval = 0"),
        (lambda: expected_seconds(5, 1, 1, 1, flush=6), "flush = 6 s.*simulate"),
        (lambda: save_worth(5, 5), "less than mtbf = 5"),
        (lambda: spares_needed(1, 1, 1), "risk = 1"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
