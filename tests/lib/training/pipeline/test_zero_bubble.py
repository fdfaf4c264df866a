"""The zero-bubble schedules: exactly as long as their bounds, for every number of ranks up to 16 and of microbatches up
to 64, in the memory that their papers state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.training.pipeline import Durations, check, one_f_one_b, simulate, zb_h1, zb_v

ALL = range(1, 65)
SOME = (*range(1, 20), 31, 32, 33, 48, 63, 64)
MICROBATCHES = pytest.mark.parametrize(
    "numbers", [SOME, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "all"]
)


def test_zb_h1_is_that_of_the_paper():
    """Qi et al. 2023, figure 2: rank r is r weight gradients behind."""
    assert str(zb_h1(3, 5)) == (
        "rank 0: F0 F1 F2 I0 W0 F3 I1 W1 F4 I2 W2 I3 W3 I4 W4\n"
        "rank 1: F0 F1 I0 F2 I1 W0 F3 I2 W1 F4 I3 W2 I4 W3 W4\n"
        "rank 2: F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 F4 I4 W2 W3 W4"
    )
    assert str(zb_h1(1, 2)) == "rank 0: F0 I0 W0 F1 I1 W1"
    assert str(zb_h1(3, 1)) == "rank 0: F0 I0 W0\nrank 1: F0 I0 W0\nrank 2: F0 I0 W0"


def test_zb_v_goes_down_the_ranks_and_up_again():
    schedule = zb_v(2, 4)
    assert schedule.placement == (0, 1, 1, 0)
    assert str(schedule) == (
        "rank 0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 0I2 3W3 0I3 0W2 0W3\n"
        "rank 1: 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 1I2 2I3 1I3 2W2 1W2 2W3 1W3"
    )


@MICROBATCHES
@pytest.mark.parametrize("ranks", range(1, 17))
def test_zb_h1_waits_for_f_plus_i_minus_w_and_keeps_no_more_than_1f1b(ranks, numbers):
    """(p − 1) · (F + I − W) = p − 1, where m ≥ p. Below that no schedule can: rank 0 waits for the first gradient until
    p · F + (p − 1) · I with m forwards to do, so it is idle for 2p − 1 − m."""
    for m in numbers:
        timeline = simulate(zb_h1(ranks, m))
        assert timeline.idle == [max(ranks - 1, 2 * ranks - 1 - m)] * ranks
        assert timeline.peak() == [min(ranks, m)] * ranks


@pytest.mark.parametrize(("forward", "inputs", "weights"), [(1, 1, 1), (3, 2, 2), (2, 3, 1), (5, 6, 4)])
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (2, 2), (3, 8), (5, 5), (8, 32)])
def test_the_formula_of_zb_h1_for_other_durations(forward, inputs, weights, ranks, microbatches):
    durations = Durations(forward, inputs, weights)
    bubble = (ranks - 1) * (forward + inputs - weights)
    assert simulate(zb_h1(ranks, microbatches), durations).idle == [bubble] * ranks
    assert simulate(one_f_one_b(ranks, microbatches), durations).idle == [bubble + 2 * (ranks - 1) * weights] * ranks


def bound(ranks, microbatches):
    """No schedule of two stages per rank in a V is shorter, with F = I = W = 1: rank r cannot begin one of its kinds of
    action before the first microbatch has come so far, and all of that kind and of the later ones are still to do."""
    p, m = ranks, microbatches
    begins = [(r, 2 * p - 1 - r, 2 * p + r, 4 * p - 1 - r) for r in range(p)]
    return max(start + each * m for starts in begins for start, each in zip(starts, (6, 5, 4, 2), strict=True))


@MICROBATCHES
@pytest.mark.parametrize("ranks", range(1, 17))
def test_zb_v_is_as_short_as_a_v_can_be(ranks, numbers):
    for m in numbers:
        timeline = simulate(zb_v(ranks, m))
        assert timeline.seconds == bound(ranks, m)
        if m >= ranks:
            assert timeline.seconds == 6 * m + ranks - 1
            assert [row[0].start for row in timeline.rows] == list(range(ranks))
            assert [row[-1].end for row in timeline.rows][-1] == 6 * m + ranks - 1
        assert max(timeline.peak()) <= min(2 * ranks, 2 * m)
        if m >= 2 * ranks:
            assert timeline.peak() == [2 * ranks] * ranks


def test_no_rank_of_zb_v_waits_once_it_has_begun():
    for row in simulate(zb_v(6, 12)).rows:
        assert row[-1].end - row[0].start == 6 * 12


@given(st.integers(1, 9), st.integers(1, 24))
def test_all_that_is_emitted_is_legal(ranks, microbatches):
    check(zb_h1(ranks, microbatches), limit=ranks)
    check(zb_v(ranks, microbatches), limit=2 * ranks)


@pytest.mark.parametrize("make", [zb_h1, zb_v])
def test_there_is_at_least_one_of_each(make):
    with pytest.raises(ValueError, match="ranks = 0"):
        make(0, 4)
    with pytest.raises(ValueError, match="microbatches = 0"):
        make(4, 0)
