"""The drawings of tokens and experts against the choices that they show."""

import math

import pytest
from threeloops.lab.drawings import draw_exchange, draw_expert_load, expert_load

CHOSEN = [[2, 0, 1, 0], [2, 1, 1, 0], [0, 2, 1, 1]]


def tokens(frame):
    """The place of each token's letter."""
    axes = draw_exchange(CHOSEN, frame).axes[0]
    return {text.get_text(): text.get_position() for text in axes.texts if len(text.get_text()) == 1}


@pytest.mark.parametrize("factor", [1.0, 1.25, math.inf])
def test_bars_add_up_to_the_choices(factor):
    load = expert_load(512, 8, k=2, skew=1.0, factor=factor)
    figure = draw_expert_load(load, factor)
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert heights[:8] == list(load.kept)
    assert [a + b for a, b in zip(heights[:8], heights[8:], strict=True)] == list(load.chosen)
    assert f"{load.dropped / 1024:.1%} dropped" in figure.axes[0].get_title(loc="left")


def test_a_larger_skew_loads_the_first_expert_more():
    first = [expert_load(512, 8, k=1, skew=skew, factor=math.inf).kept[0] for skew in (0.0, 1.0, 2.0)]
    assert first == sorted(first) and first[0] < first[-1]


def test_every_frame_shows_every_token_once_and_no_two_at_one_place():
    for frame in range(9):
        places = tokens(frame)
        assert sorted(places) == list("abcdefghijkl")
        assert len(set(places.values())) == 12, frame


def test_tokens_arrive_at_the_rank_of_their_expert_and_come_home():
    experts = [expert for picks in CHOSEN for expert in picks]
    arrived = tokens(4)
    assert [-arrived[name][1] for name in sorted(arrived)] == experts
    assert tokens(8) == tokens(0)
    assert tokens(7) == tokens(2)
