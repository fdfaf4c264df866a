"""Lab 12: the numbers of its prose, and of its checks."""

import pytest
from threeloops.training.cluster import Cluster, uniform
from threeloops.training.pipeline import (
    Action,
    Durations,
    Schedule,
    bubble_share,
    check,
    gpipe,
    one_f_one_b,
    simulate,
    zb_v,
)
from threeloops.training.pipeline.schedule import in_turns

ONE_TWO = Durations(forward=1.0, backward=2.0)


def schedule_of(*texts):
    rows = [[Action(word[0], rank, int(word[1:])) for word in text.split()] for rank, text in enumerate(texts)]
    return Schedule(rows, tuple(range(len(texts))), len(rows[0]) // 2)


def ends(timeline):
    return [[each.end for each in row] for row in timeline.rows]


def test_the_worked_example_of_the_bubble():
    timeline = simulate(gpipe(3, 4), ONE_TWO)
    assert timeline.seconds == 18 and timeline.idle == [6, 6, 6]
    assert timeline.rows[2][0].start == 2 and timeline.rows[2][3].end == 6 and timeline.rows[2][-1].end == 14


def test_the_bubbles_of_eight_stages():
    assert round(100 * bubble_share(8, 8), 1) == 46.7
    assert bubble_share(8, 49) == 1 / 8
    assert (fewest(8, 0.2), fewest(8, 0.1)) == (28, 63)
    assert 0.17 < bubble_share(8, 32) < bubble_share(64, 256) < 0.2


@pytest.mark.parametrize(("stages", "share", "expected"), [(8, 0.25, 21), (3, 0.334, 4), (4, 0.5, 3), (3, 0.15, 12)])
def test_the_visible_cases_of_exercise_1(stages, share, expected):
    assert fewest(stages, share) == expected


def fewest(stages, share):
    """Return the fewest microbatches with a bubble of at most `share`, up to a rounding error."""
    return next(count for count in range(1, 1000) if bubble_share(stages, count) <= share + 1e-12)


def test_one_f_one_b_takes_as_long_as_gpipe():
    assert str(one_f_one_b(2, 3)) == "rank 0: F0 F1 B0 F2 B1 B2\nrank 1: F0 B0 F1 B1 F2 B2"
    assert simulate(one_f_one_b(4, 16), ONE_TWO).seconds == simulate(gpipe(4, 16), ONE_TWO).seconds == 57


def test_the_worked_example_of_the_simulation():
    timeline = simulate(schedule_of("F0 F1 B0 B1", "F0 B0 F1 B1"), ONE_TWO, 0.5)
    assert ends(timeline) == [[1, 2, 7, 10], [2.5, 4.5, 5.5, 7.5]]


def test_the_visible_cases_of_exercise_4():
    slow = Durations(forward=[1.0, 3.0], backward=[2.0, 4.0])
    assert ends(simulate(schedule_of("F0 F1 B0 B1", "F0 B0 F1 B1"), slow)) == [[1, 2, 10, 17], [4, 8, 11, 15]]
    crossed = schedule_of("F0 F1 B1 B0", "F1 F0 B1 B0")
    assert ends(simulate(crossed, ONE_TWO)) == [[1, 2, 8, 10], [3, 4, 6, 8]]
    middle = Durations(forward=[1.0, 2.0, 1.0], backward=[2.0, 3.0, 1.0])
    assert ends(simulate(schedule_of(*["F0 F1 B0 B1"] * 3), middle, 0.25)) == [
        [1, 2, 13, 16],
        [3.25, 5.25, 10.75, 13.75],
        [4.5, 6.5, 7.5, 8.5],
    ]


def test_transfers_of_the_visible_case_do_not_wait_for_one_another():
    timeline = simulate(schedule_of("F0 F1 B0 B1", "F0 F1 B0 B1"), ONE_TWO, 5.0)
    assert ends(timeline) == [[1, 2, 17, 19], [7, 8, 10, 12]]


def test_the_editor_starts_with_a_legal_schedule_and_refuses_what_the_text_suggests():
    rows = [str(gpipe(3, 4)).splitlines()[rank].split(": ")[1] for rank in range(3)]
    check(schedule_of(*rows), complete=False)
    with pytest.raises(ValueError, match="waits for"):
        check(schedule_of("F0 B0 F1 F2 F3 B1 B2 B3", *rows[1:]), complete=False)


@pytest.mark.parametrize(("transfer", "expected"), [(0.0, (57, 57)), (0.5, (60, 71))])
def test_transfers_lengthen_one_f_one_b_more_than_gpipe(transfer, expected):
    found = tuple(simulate(make(4, 16), ONE_TWO, transfer).seconds for make in (gpipe, one_f_one_b))
    assert found == pytest.approx(expected)


def test_twice_as_many_forwards_ahead_give_one_f_one_b_slack():
    rows = [
        in_turns(2 * (3 - rank), *([Action(kind, rank, i) for i in range(16)] for kind in "FB")) for rank in range(4)
    ]
    timeline = simulate(Schedule(rows, (0, 1, 2, 3), 16), ONE_TWO, 0.5)
    assert (timeline.seconds, timeline.peak()) == (60, [7, 5, 3, 1])


def test_zb_v_keeps_no_more_than_the_first_rank_of_one_f_one_b():
    timeline = simulate(zb_v(4, 8), Durations(0.5, 0.5, 0.5))
    assert round(100 * timeline.bubble[0], 1) == 5.9
    assert max(timeline.peak([0.5] * 8)) == max(simulate(one_f_one_b(4, 8)).peak()) == 4


def test_the_weights_of_175_billion_parameters():
    assert round(175 * 2 / 64, 2) == 5.47 and 175 * 2 / 8 == 175 * 16 / 64 == 43.75


def _exchange():
    import torch
    import torch.distributed as dist

    other = 1 - dist.get_rank()
    work = dist.isend(torch.ones(64), other)
    dist.recv(torch.empty(64), other)
    work.wait()


def test_a_message_takes_its_latency_and_its_bytes():
    assert Cluster(uniform(2, 10e-6, 1e9)).run(_exchange).seconds == pytest.approx(10e-6 + 256e-9)
