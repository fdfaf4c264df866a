"""The autoscaler follows Kubernetes' documentation, and every decision says why."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.product.fleet import Autoscaler, History, Rate, ScalingRules, State

FREE = ScalingRules(0)
PLAIN = Autoscaler(target=10, minimum=1, maximum=100, up=FREE, down=FREE)
"""The rule alone: no window, no rates."""


def desired(autoscaler: Autoscaler, replicas: int, *metrics: float | None, history: History | None = None) -> int:
    return autoscaler.decide(0, State(replicas, metrics, history=history or History())).desired


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ((20, 20), 4),  # twice the target: twice the replicas
        ((5, 5, 5, 5), 2),
        ((20, 0), 2),  # the mean counts
        ((10.9, 10.9), 2),  # within a tenth of the target
        ((11.1, 11.1), 3),  # beyond it, rounded up
        ((8.9,) * 10, 9),
        ((9.1,) * 10, 10),
        ((0, 0, 0), 1),  # the minimum
        ((1000, 1000), 100),  # the maximum
    ],
)
def test_the_rule_is_the_ratio_rounded_up_outside_of_the_tolerance(metrics, expected):
    assert desired(PLAIN, len(metrics), *metrics) == expected


def test_rounding_errors_ask_for_no_replica_more():
    """3 · 0.3 / 0.1 is 9.000000000000002 in floating point."""
    assert desired(replace(PLAIN, target=0.1), 3, 0.3, 0.3, 0.3) == 9


@given(st.lists(st.floats(0, 200), min_size=1, max_size=50))
def test_with_all_ready_it_is_what_serves_the_sum(metrics):
    mean = sum(metrics) / len(metrics)
    found = desired(PLAIN, len(metrics), *metrics)
    if abs(mean / 10 - 1) <= 0.1 - 1e-9:
        assert found == len(metrics)
    elif abs(mean / 10 - 1) > 0.1 + 1e-9:
        assert found == min(100, max(1, math.ceil(sum(metrics) / 10 - 1e-9 * max(1, sum(metrics)))))


def test_replicas_that_start_count_as_idle_on_the_way_up():
    assert desired(PLAIN, 2, 30, 30) == 6
    assert desired(PLAIN, 5, 30, 30) == 6, "the three that start will take their share"
    assert desired(PLAIN, 6, 30, 30) == 6
    assert desired(PLAIN, 9, 30, 30) == 9, "with seven more there are too many, which is no reason to remove any"


def test_replicas_that_start_change_nothing_on_the_way_down():
    """As in Kubernetes, where the window for scaling down is what keeps them."""
    assert desired(PLAIN, 6, 4, 4) == 1


def test_a_silent_replica_counts_as_idle_on_the_way_up_and_as_on_target_on_the_way_down():
    assert desired(PLAIN, 3, 20, 20, 20) == 6
    assert desired(PLAIN, 3, 20, 20, None) == 4
    assert desired(PLAIN, 4, 2, 2, 2, 2) == 1
    assert desired(PLAIN, 4, 2, 2, None, None) == 3
    assert desired(PLAIN, 3, 12, 12, None) == 3, "with the silent one as idle it would turn the direction"


@pytest.mark.parametrize("metrics", [(), (None, None)])
def test_without_a_metric_nothing_changes(metrics):
    decision = PLAIN.decide(0, State(7, metrics))
    assert decision.desired == 7 and "no ready replica has a metric" in decision.reason


@given(st.integers(1, 20), st.integers(0, 20), st.floats(0, 100))
def test_more_that_start_never_ask_for_more(ready, starting, metric):
    fewer = desired(PLAIN, ready + starting, *[metric] * ready)
    more = desired(PLAIN, ready + starting + 1, *[metric] * ready)
    if metric > 10 * 1.1:
        assert more - (ready + starting + 1) <= max(0, fewer - (ready + starting))


def run(autoscaler: Autoscaler, metrics, replicas: int, period: float = 15.0) -> list[int]:
    """Desired replicas over time, each ready as soon as it is asked for."""
    history, found = History(), []
    for look, total in enumerate(metrics):
        state = State(replicas, (total / replicas,) * replicas if replicas else (), total, history)
        decision = autoscaler.decide(look * period, state)
        replicas, history = decision.desired, decision.history
        found.append(replicas)
    return found


def test_scaling_down_waits_until_a_whole_window_agrees():
    autoscaler = replace(PLAIN, down=ScalingRules(60))
    assert run(autoscaler, [100, 20, 20, 20, 20, 20, 20], 10) == [10, 10, 10, 10, 2, 2, 2]
    assert run(autoscaler, [100, 20, 20, 60, 20, 20, 20, 20, 20], 10) == [10, 10, 10, 10, 6, 6, 6, 2, 2]


def test_scaling_up_with_a_window_waits_for_the_lowest_of_it():
    autoscaler = replace(PLAIN, up=ScalingRules(30))
    assert run(autoscaler, [10, 50, 40, 30, 30, 30], 1) == [1, 1, 4, 3, 3, 3]


def test_the_replicas_that_an_autoscaler_finds_count_as_its_first_recommendation():
    """So a fleet that was started for the morning is not taken down by the first look."""
    assert run(replace(PLAIN, down=ScalingRules(60)), [0] * 6, 8) == [8, 8, 8, 8, 1, 1]


def test_windows_have_a_reason():
    autoscaler = replace(PLAIN, down=ScalingRules(60))
    first = autoscaler.decide(0, State(10, (10,) * 10))
    second = autoscaler.decide(15, State(10, (2,) * 10, history=first.history))
    assert second.desired == 10 and second.reason.endswith("which asks for 2; stabilised over 60 s")


def test_the_default_rates_double_or_add_four():
    autoscaler = Autoscaler(target=10, maximum=100)
    assert run(autoscaler, [1000] * 6, 1) == [5, 10, 20, 40, 80, 100]


@pytest.mark.parametrize(("select", "expected"), [("max", 10), ("min", 7), ("disabled", 5)])
def test_of_two_rates_the_selected_one_counts(select, expected):
    up = ScalingRules(0, (Rate(100, "percent", 15), Rate(2, "replicas", 15)), select)
    assert desired(replace(PLAIN, up=up), 5, *[100] * 5) == expected


def test_rates_count_what_changed_within_the_period():
    autoscaler = replace(PLAIN, up=ScalingRules(0, (Rate(3, "replicas", 60),)), down=ScalingRules(0))
    assert run(autoscaler, [1000] * 9, 1) == [4, 4, 4, 4, 7, 7, 7, 7, 10]


def test_percentages_round_in_favour_of_a_change():
    up, down = ScalingRules(0, (Rate(10, "percent", 15),)), ScalingRules(0, (Rate(10, "percent", 15),))
    autoscaler = replace(PLAIN, up=up, down=down)
    assert desired(autoscaler, 3, 100, 100, 100) == 4
    assert desired(autoscaler, 3, 0, 0, 0) == 2


@given(
    st.lists(st.floats(0, 500), min_size=2, max_size=60),
    st.integers(1, 30),
    st.integers(1, 5),
    st.sampled_from([15.0, 30.0, 45.0, 100.0]),
    st.sampled_from([0.0, 20.0, 90.0]),
)
def test_no_look_goes_farther_from_the_beginning_of_a_period_than_the_rate_and_none_below_the_window(
    totals, start, value, seconds, window
):
    rules = ScalingRules(window, (Rate(value, "replicas", seconds),))
    autoscaler = Autoscaler(target=10, minimum=1, maximum=40, up=replace(rules, window=0), down=rules)
    found = [start, *run(autoscaler, totals, start)]
    assert all(1 <= replicas <= 40 for replicas in found)
    for look, (before, after) in enumerate(zip(found, found[1:], strict=False)):
        begin = found[next(each for each in range(look + 1) if 15 * each > 15 * look - seconds)]
        assert min(before, begin - value) <= after <= max(before, begin + value)
    wanted = [PLAIN.decide(0, State(n, (total / n,) * n)).desired for n, total in zip(found, totals, strict=False)]
    for look, (before, after) in enumerate(zip(found, found[1:], strict=False)):
        recent = [min(40, wanted[i]) for i in range(look + 1) if i == look or (look - i) * 15 < window]
        if after < before:
            assert after >= max(recent), "a recommendation of the window asked for more"


def test_from_zero_as_soon_as_anything_is_active_and_to_zero_after_the_cooldown():
    autoscaler = Autoscaler(target=10, minimum=0, maximum=5, up=FREE, down=FREE, cooldown=45)
    assert run(autoscaler, [0, 0, 1, 1, 0, 0, 0, 0, 3], 0) == [0, 0, 1, 1, 1, 1, 0, 0, 1]


def test_below_the_activation_nothing_is_active():
    autoscaler = Autoscaler(target=10, minimum=0, maximum=5, activation=4, cooldown=30)
    assert run(autoscaler, [4, 4, 5, 0, 0, 0], 0) == [0, 0, 1, 1, 0, 0]


def test_an_autoscaler_that_comes_to_idle_replicas_lets_the_cooldown_pass_first():
    autoscaler = Autoscaler(target=10, minimum=0, maximum=5, up=FREE, down=FREE, cooldown=30)
    assert run(autoscaler, [0, 0, 0, 0], 1) == [1, 1, 0, 0]


def test_with_a_minimum_of_one_the_last_replica_stays():
    assert run(Autoscaler(target=10, minimum=1, cooldown=15), [0] * 50, 3)[-1] == 1
    assert run(Autoscaler(target=10, minimum=2), [0], 0) == [2]


def test_replicas_outside_of_the_limits_are_brought_back_at_once():
    assert desired(Autoscaler(target=1, minimum=3, maximum=4), 9, *[1] * 9) == 4
    assert desired(Autoscaler(target=1, minimum=3, maximum=4), 1, 1) == 3


def test_deciding_changes_nothing_so_it_can_be_asked_again():
    state = State(3, (50, 50, 50))
    assert PLAIN.decide(0, state) == PLAIN.decide(0, state)
    assert state.history == History()


def test_history_does_not_grow_for_ever():
    autoscaler, history = Autoscaler(target=10), History()
    for look in range(2000):
        history = autoscaler.decide(15 * look, State(2, (look % 30,) * 2, history=history)).history
    assert len(history.recommendations) <= 300 / 15 + 1 and len(history.changes) <= 2


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Autoscaler(target=0), "target = 0"),
        (lambda: Autoscaler(target=math.nan), "target = nan"),
        (lambda: Autoscaler(target=1, minimum=5, maximum=4), "minimum = 5, maximum = 4"),
        (lambda: Autoscaler(target=1, minimum=0, maximum=0), "maximum = 0"),
        (lambda: Autoscaler(target=1, tolerance=-0.1), "tolerance = -0.1"),
        (lambda: Rate(0, "replicas", 15), "value = 0"),
        (lambda: Rate(1, "pods", 15), "unit = 'pods'"),
        (lambda: ScalingRules(-1), "window = -1"),
        (lambda: ScalingRules(0, select="best"), "select = 'best'"),
        (lambda: State(1, (1, 2)), "2 metrics of 1 replicas"),
    ],
)
def test_settings_out_of_range_are_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()
