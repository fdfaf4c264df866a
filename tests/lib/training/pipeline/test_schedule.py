"""What the schedules with whole backward passes emit: their published rows, and their bubbles and memory in closed form
for every number of ranks up to 16 and of microbatches up to 64."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.training.pipeline import (
    Action,
    Durations,
    Schedule,
    bubble_share,
    check,
    gpipe,
    interleaved,
    one_f_one_b,
    simulate,
)

ALL = range(1, 65)
SOME = (*range(1, 20), 31, 32, 33, 48, 63, 64)
MICROBATCHES = pytest.mark.parametrize(
    "numbers", [SOME, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "all"]
)
UNEVEN = Durations(forward=3, backward=5)


def test_one_f_one_b_is_that_of_the_paper():
    """Narayanan et al. 2021, figure 4, with four ranks and eight microbatches."""
    assert str(one_f_one_b(4, 8)) == (
        "rank 0: F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7\n"
        "rank 1: F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7\n"
        "rank 2: F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7\n"
        "rank 3: F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"
    )


def test_fewer_microbatches_than_ranks():
    assert str(one_f_one_b(4, 2)) == (
        "rank 0: F0 F1 B0 B1\nrank 1: F0 F1 B0 B1\nrank 2: F0 F1 B0 B1\nrank 3: F0 B0 F1 B1"
    )
    assert str(one_f_one_b(1, 2)) == "rank 0: F0 B0 F1 B1"
    assert str(gpipe(2, 1)) == "rank 0: F0 B0\nrank 1: F0 B0"


def test_interleaved_is_that_of_the_paper():
    """Megatron-LM's order: groups of as many microbatches as ranks, each through all chunks of a rank in turn."""
    schedule = interleaved(2, 4, chunks=2)
    assert schedule.placement == (0, 1, 0, 1)
    assert str(schedule) == (
        "rank 0: 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3\n"
        "rank 1: 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3"
    )


@MICROBATCHES
@pytest.mark.parametrize("ranks", range(1, 17))
def test_every_rank_of_gpipe_and_1f1b_waits_ranks_minus_1_forwards_and_backwards(ranks, numbers):
    for m in numbers:
        for schedule in (gpipe(ranks, m), one_f_one_b(ranks, m)):
            timeline = simulate(schedule)
            assert timeline.idle == [(ranks - 1) * (1 + 2)] * ranks
            assert timeline.seconds == (m + ranks - 1) * 3
        assert simulate(gpipe(ranks, m)).peak() == [m] * ranks
        assert simulate(one_f_one_b(ranks, m)).peak() == [min(m, ranks - r) for r in range(ranks)]


@MICROBATCHES
@pytest.mark.parametrize("ranks", range(1, 17))
def test_interleaving_divides_the_bubble_by_the_chunks(ranks, numbers):
    for m in [each for each in numbers if each % ranks == 0]:
        for chunks in (1, 2, 3):
            timeline = simulate(interleaved(ranks, m, chunks), Durations(forward=1, backward=2))
            assert timeline.idle == [(ranks - 1) * (1 + 2)] * ranks  # of chunks that take a third, or half
            warm_up = [2 * (ranks - r - 1) + (chunks - 1) * ranks + 1 for r in range(ranks)]
            assert timeline.peak() == [min(each, chunks * m) for each in warm_up]


@pytest.mark.parametrize("make", [gpipe, one_f_one_b, lambda p, m: interleaved(p, m, 2)])
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (3, 9), (5, 5), (7, 28), (4, 64)])
def test_the_bubble_does_not_depend_on_how_forward_and_backward_compare(make, ranks, microbatches):
    assert simulate(make(ranks, microbatches), UNEVEN).idle == [(ranks - 1) * 8] * ranks


def test_with_one_chunk_interleaved_keeps_more_but_takes_no_longer():
    plain, same = one_f_one_b(4, 8), interleaved(4, 8, chunks=1)
    assert simulate(same).seconds == simulate(plain).seconds
    assert simulate(plain).peak() == [4, 3, 2, 1] and simulate(same).peak() == [7, 5, 3, 1]


@pytest.mark.parametrize("ranks", [1, 3, 8])
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_the_share_of_the_bubble_is_what_the_simulator_finds(ranks, chunks):
    for m in range(ranks, 5 * ranks, ranks):
        schedule = one_f_one_b(ranks, m) if chunks == 1 else interleaved(ranks, m, chunks)
        assert simulate(schedule).bubble == pytest.approx([bubble_share(ranks, m, chunks)] * ranks, rel=1e-12)


def test_eight_microbatches_on_eight_ranks_are_a_bubble_of_47_percent_and_20_percent_needs_28():
    assert round(bubble_share(8, 8), 2) == 0.47
    assert bubble_share(8, 28) == pytest.approx(0.2) and bubble_share(8, 27) > 0.2


@given(st.integers(1, 9), st.integers(1, 20), st.integers(1, 4))
def test_all_that_is_emitted_is_legal(ranks, microbatches, chunks):
    check(gpipe(ranks, microbatches))
    check(one_f_one_b(ranks, microbatches), limit=ranks)
    check(interleaved(ranks, microbatches * ranks, chunks))


def test_interleaving_refuses_incomplete_groups():
    with pytest.raises(ValueError, match=r"microbatches = 6 on 4 ranks.*groups of 4.*one_f_one_b"):
        interleaved(4, 6)


@pytest.mark.parametrize("make", [gpipe, one_f_one_b, interleaved])
@pytest.mark.parametrize(("ranks", "microbatches", "said"), [(0, 4, "ranks = 0"), (4, 0, "microbatches = 0")])
def test_there_is_at_least_one_of_each(make, ranks, microbatches, said):
    with pytest.raises(ValueError, match=said):
        make(ranks, microbatches)


def test_other_numbers_that_cannot_be():
    with pytest.raises(ValueError, match="chunks = 0"):
        interleaved(2, 4, chunks=0)
    with pytest.raises(ValueError, match=r"microbatches = 2\.0"):
        one_f_one_b(2, 2.0)
    with pytest.raises(ValueError, match="stage 1 is on rank 2: expected one of the ranks 0 to 1"):
        Schedule([[], []], (0, 2), 1)


def test_whose_result_an_action_needs_and_who_needs_its_own():
    schedule = Schedule([[], [], []], (0, 1, 2), 1)
    needs = {kind: [schedule.source(Action(kind, stage, 0)) for stage in range(3)] for kind in "FBIW"}
    gives = {kind: [schedule.target(Action(kind, stage, 0)) for stage in range(3)] for kind in "FBIW"}
    up, down, none = [None, 0, 1], [1, 2, None], [None] * 3
    assert needs == {"F": up, "B": down, "I": down, "W": none}
    assert gives == {"F": down, "B": up, "I": up, "W": none}
    assert str(Action("F", 2, 1)) == "forward of microbatch 1 on stage 2"
