"""The ring all-reduce step by step: sums by a formula of their own, and what the frames show of them."""

import pytest
from matplotlib.colors import to_hex
from threeloops.figures import palette
from threeloops.lab import animate
from threeloops.lab.drawings import draw_ring, ring_steps
from threeloops.lab.widgets import style

RANKS = range(2, 9)


def summed(ranks, rank, chunk, step):
    """The ranks whose values are in a chunk after `step` steps.

    The sum of chunk c sets out from rank c + 1 and goes one rank further in every step. After ranks − 1 steps it is
    whole, and goes on until it has been everywhere a second time.
    """
    behind = (rank - chunk - 1) % ranks
    if step >= ranks + behind:
        return set(range(ranks))
    return {(chunk + 1 + k) % ranks for k in range(behind + 1)} if step >= behind else {rank}


@pytest.mark.parametrize("ranks", RANKS)
def test_every_cell_holds_the_right_sum_after_every_step(ranks):
    steps = ring_steps(ranks)
    assert len(steps) == 2 * (ranks - 1) + 1
    for number, step in enumerate(steps):
        for rank in range(ranks):
            for chunk in range(ranks):
                expected = summed(ranks, rank, chunk, number)
                assert step.values[rank][chunk] == sum(10**r for r in expected)
                assert step.terms[rank][chunk] == len(expected)


@pytest.mark.parametrize("ranks", RANKS)
def test_each_step_changes_one_cell_of_each_rank_by_what_the_rank_before_sent(ranks):
    steps = ring_steps(ranks)
    for number, (old, new) in enumerate(zip(steps, steps[1:], strict=False)):
        assert sorted(new.sent) == list(range(ranks)), "each chunk travels once a step"
        assert new.number == number + 1
        assert new.phase == ("reduce-scatter" if number < ranks - 1 else "all-gather")
        for rank in range(ranks):
            came = new.sent[rank - 1]
            for chunk in range(ranks):
                add = old.values[rank][chunk] if number < ranks - 1 else 0
                held = old.values[rank - 1][chunk] + add if chunk == came else old.values[rank][chunk]
                assert new.values[rank][chunk] == held


def test_values_of_ones_own():
    values = [[1.5, 2.0, -3.0], [0.25, 0.0, 1.0], [4.0, 8.0, 16.0]]
    steps = ring_steps(3, values)
    assert steps[0].values == tuple(map(tuple, values)) and steps[0].sent == ()
    assert steps[-1].values == ((5.75, 10.0, 14.0),) * 3
    assert values[0] == [1.5, 2.0, -3.0]


def test_a_single_rank_has_nothing_to_send():
    (step,) = ring_steps(1)
    assert step.values == ((1,),) and step.terms == ((1,),)
    assert "before the first step" in draw_ring(step).axes[0].get_title("left")


@pytest.mark.parametrize(
    ("ranks", "values", "message"),
    [
        (0, None, "ranks = 0: expected 1 to 8"),
        (9, None, "ranks = 9: expected 1 to 8"),
        (2, [[1, 2], [3]], r"values has rows of \[2, 1\] chunks: expected 2 rows of 2"),
        (2, [[1, 2]], r"values has rows of \[2\] chunks"),
    ],
)
def test_what_is_no_ring(ranks, values, message):
    with pytest.raises(ValueError, match=message):
        ring_steps(ranks, values)


@pytest.mark.parametrize("ranks", [2, 5, 8])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_frame_shows_the_numbers_the_moves_and_what_is_whole(ranks, place):
    number = {"first": 1, "middle": ranks, "last": 2 * ranks - 2}[place]
    step = ring_steps(ranks)[number]
    figure = draw_ring(step)
    axes = figure.axes[0]
    texts = {text.get_position(): text.get_text() for text in axes.texts if text.get_text()}
    cells = [(rank, chunk) for rank in range(ranks) for chunk in range(ranks)]
    assert texts == {(c + 0.5, r + 0.5): str(step.values[r][c]) for r, c in cells}

    fresh, whole = set(), set()
    for patch in axes.patches:
        place = round(patch.get_y() - 0.17), round(patch.get_x() - 0.06)
        if to_hex(patch.get_edgecolor()) == palette.vermillion:
            fresh.add(place)
        if to_hex(patch.get_facecolor()) == palette.green:
            whole.add(place)
    assert fresh == {((rank + 1) % ranks, chunk) for rank, chunk in enumerate(step.sent)}
    assert whole == {(r, c) for r, c in cells if step.terms[r][c] == ranks}

    arrows = [(text.xyann, text.xy) for text in axes.texts if getattr(text, "arrow_patch", None)]
    inner = {(int(y0), int(x0)) for (x0, y0), (x1, y1) in arrows if 0 < y0 < y1 < ranks}
    assert inner == {(rank, chunk) for rank, chunk in enumerate(step.sent[:-1])}
    assert all(x0 == x1 and y1 > y0 for (x0, y0), (x1, y1) in arrows)
    round_the_end = sorted(int(x0) for (x0, y0), (_, y1) in arrows if y1 > ranks or y0 < 0)
    assert round_the_end == [step.sent[-1]] * 2
    assert axes.get_title("left") == f"Ring all-reduce, step {number} of {2 * ranks - 2}, {step.phase}"


def test_the_numbers_fit_and_follow_the_page():
    figure = draw_ring(ring_steps(8)[-1])
    figure.draw_without_rendering()
    axes, renderer = figure.axes[0], figure.canvas.get_renderer()
    for text in (text for text in axes.texts if text.get_text()):
        x, y = text.get_position()
        left, right = axes.transData.transform([(x - 0.44, y), (x + 0.44, y)])[:, 0]
        assert left < text.get_window_extent(renderer).x0 and text.get_window_extent(renderer).x1 < right
    picture = style.svg(figure, "ring")
    assert not [colour for colour in (palette.ink, "#000000", "#ffffff") if colour in picture]
    assert len(picture) < 300_000 and len(style.png(figure)[0]) < 300_000


def test_its_frames_are_an_animation_of_less_than_a_megabyte():
    steps = ring_steps(8)
    assert len(steps) * len(style.svg(draw_ring(steps[-1]))) < 1 << 20
    animate(draw_ring, ring_steps(3))
