"""The fit finds what made the times, and the choice is that of the costs."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.training.collectives import ALL_REDUCES, Link, best_algorithm, fastest, fit, predicted_seconds

SIZES = [1 << power for power in range(6, 27, 2)]


@given(st.floats(1e-7, 1e-2), st.floats(1e6, 1e12), st.sets(st.sampled_from(SIZES), min_size=2))
def test_a_fit_of_exact_times_predicts_them(latency, bandwidth, sizes):
    link = Link(latency, bandwidth)
    found = fit(sorted(sizes), [link.seconds(size) for size in sorted(sizes)])
    for size in sizes:
        assert found.seconds(size) == pytest.approx(link.seconds(size), rel=1e-6)


def test_both_parameters_are_found_where_both_matter():
    link = Link(20e-6, 2e9)
    found = fit(SIZES, [link.seconds(size) for size in SIZES])
    assert (found.latency, found.bandwidth) == (pytest.approx(20e-6), pytest.approx(2e9))


def test_errors_are_relative_so_that_small_messages_count():
    """Large messages that are off by 10% must not move the latency by more than a little."""
    link = Link(20e-6, 2e9)
    found = fit(SIZES, [link.seconds(size) * (1.1 if size > 1 << 20 else 1.0) for size in SIZES])
    assert found.latency == pytest.approx(20e-6, rel=0.03)
    # The best of all small changes of the two, by brute force.
    seconds = [link.seconds(size) * (1.3 if size > 1 << 12 else 0.9) for size in SIZES]
    found = fit(SIZES, seconds)

    def error(link):
        return sum((link.seconds(size) / each - 1) ** 2 for size, each in zip(SIZES, seconds, strict=True))

    near = [
        Link(found.latency * a, found.bandwidth * b) for a in (0.99, 1.0, 1.01) for b in (0.99, 1.0, 1.01) if a * b != 1
    ]
    assert all(error(found) < error(other) for other in near)


def test_what_would_be_negative_is_zero():
    steep = fit([1000, 2000], [1e-3, 4e-3])
    assert steep.latency == 0 and 1000 / 2e-3 < steep.bandwidth < 1000 / 1e-3
    falling = fit([1000, 2000], [4e-3, 1e-3])
    assert falling.bandwidth == math.inf and 1e-3 < falling.latency < 4e-3
    assert falling.seconds(10**9) == falling.latency


@pytest.mark.parametrize(
    ("sizes", "seconds", "message"),
    [
        ([], [], "0 different sizes: expected two or more"),
        ([8, 8, 8], [1.0, 1.1, 0.9], "1 different sizes"),
        ([8, 16], [1.0], "2 sizes and 1 times"),
        ([8, 16], [1.0, math.nan], "a time is nan: expected a finite number > 0; leave failed runs out"),
        ([8, 16], [1.0, 0.0], "a time is 0.0"),
        ([8, 16], [math.inf, 1.0], "a time is inf"),
        ([-8, 16], [1.0, 1.0], "a size is -8: expected a finite number ≥ 0"),
        ([math.nan, 16], [1.0, 1.0], "a size is nan"),
    ],
)
def test_what_cannot_be_fitted_is_named(sizes, seconds, message):
    with pytest.raises(ValueError, match=message):
        fit(sizes, seconds)


def test_an_empty_message_may_be_among_the_sizes():
    assert fit([0, 1000], [1e-3, 2e-3]).latency == pytest.approx(1e-3)


def test_the_map_of_the_fastest_is_that_of_thakur_rabenseifner_and_gropp():
    """Short: recursive doubling. Long: Rabenseifner's on 2^m ranks, and the ring where ranks had to be folded in."""
    link = Link(10e-6, 1e9)
    rows = fastest([64, 1 << 28], [4, 5, 8, 12, 16], link)
    doubling, halving = "recursive doubling", "halving-doubling"
    assert rows == (
        (doubling, halving),
        (doubling, "ring"),
        (doubling, halving),
        (doubling, "ring"),
        (doubling, halving),
    )


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 16, 100])
@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 20, 1 << 30])
def test_the_best_is_the_least_of_the_predictions_without_the_naive_one(ranks, size):
    link = Link(14e-6, 50e9, reduce_seconds=1e-10)
    seconds = predicted_seconds(size, ranks, link)
    assert seconds == {n: each.cost(-(-size // 4), 4, ranks, link).seconds for n, each in ALL_REDUCES.items()}
    best = best_algorithm(size, ranks, link)
    assert best != "naive" and seconds[best] == min(value for name, value in seconds.items() if name != "naive")


def test_of_two_ranks_the_ring_wins_when_reducing_takes_longer_than_sending():
    assert best_algorithm(1 << 20, 2, Link(0.0, 1e9)) == "ring", "a tie goes to the first"
    assert best_algorithm(1 << 20, 2, Link(1e-6, 1e9)) == "recursive doubling", "one latency less"
    assert best_algorithm(1 << 20, 2, Link(1e-6, 1e9, reduce_seconds=1e-9)) == "ring", "each reduces a half"


def test_one_rank_takes_no_time():
    assert set(predicted_seconds(1 << 20, 1, Link(1e-6, 1e9)).values()) == {0.0}
