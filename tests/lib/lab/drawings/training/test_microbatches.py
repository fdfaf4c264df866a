"""Microbatches in flight, as the animation of lab 12 shows them."""

import pytest
from threeloops.lab.drawings import draw_flight
from threeloops.lab.drawings.training.microbatches import _in_flight
from threeloops.training.pipeline import Durations, gpipe, one_f_one_b, simulate, zb_h1

SECONDS = Durations(forward=1.0, backward=2.0)


def test_a_microbatch_is_in_flight_from_its_forward_to_the_end_of_its_backward():
    row = simulate(one_f_one_b(2, 3), SECONDS).rows[0]
    assert [_in_flight(row, at) for at in (0.0, 0.5, 1.5, 5.9, 6.0, 12.0)] == [[], [0], [0, 1], [0, 1], [1], []]


def test_a_divided_backward_frees_it_with_its_second_part():
    for row in simulate(zb_h1(3, 4)).rows:
        assert _in_flight(row, row[-1].start) and not _in_flight(row, row[-1].end)


@pytest.mark.parametrize("at", [0.0, 7.5, 33.0])
def test_each_schedule_has_a_timeline_and_squares(at):
    timelines = {"GPipe": simulate(gpipe(4, 8), SECONDS), "1F1B": simulate(one_f_one_b(4, 8), SECONDS)}
    figure = draw_flight(timelines, at)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[1::2] == ["in flight", "in flight"]
    assert [title.split(" after ")[0] for title in titles[::2]] == list(timelines)
    squares = [sum(len(_in_flight(row, at)) for row in timeline.rows) for timeline in timelines.values()]
    assert [len(axes.patches) for axes in figure.axes[1::2]] == squares
