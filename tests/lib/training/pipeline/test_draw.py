"""The picture of a step, read back from what matplotlib draws."""

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from threeloops.figures import palette
from threeloops.training.pipeline import Action, Durations, Timed, Timeline, gantt, one_f_one_b, simulate, zb_v

KINDS = {"forward": "F", "backward": "B", "input gradient": "I", "weight gradient": "W"}


def bars_of(figure):
    """(kind, rank, start, end) of each bar."""
    found = []
    for bars in figure.axes[0].collections:
        assert isinstance(bars, PolyCollection)
        for path in bars.get_paths():
            (left, low), (right, high) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            found.append((KINDS[bars.get_label()], round((low + high) / 2), left, right))
    return sorted(found)


@pytest.mark.parametrize("schedule", [one_f_one_b(3, 4), zb_v(3, 4)], ids=["1F1B", "ZB-V"])
def test_every_action_is_a_bar_on_its_rank_with_its_microbatch(schedule):
    timeline = simulate(schedule, Durations(1e-3, 2e-3, 3e-3), transfers=1e-4)
    figure = gantt(timeline)
    rows = list(enumerate(timeline.rows))
    expected = [(a.kind, rank, start, end) for rank, row in rows for a, start, end in row]
    assert [bar[:2] for bar in bars_of(figure)] == [bar[:2] for bar in sorted(expected)]
    assert [x for bar in bars_of(figure) for x in bar[2:]] == pytest.approx(
        [x for bar in sorted(expected) for x in bar[2:]]
    )
    written = sorted((round(t.get_position()[0], 9), t.get_position()[1], t.get_text()) for t in figure.axes[0].texts)
    middles = [(round((start + end) / 2, 9), rank, str(a.microbatch)) for rank, row in rows for a, start, end in row]
    assert written == sorted(middles)


def test_kinds_have_colours_and_a_ranks_later_stage_is_paler():
    timeline = simulate(zb_v(2, 4))
    figure = gantt(timeline)
    collections = figure.axes[0].collections
    looks = {(c.get_label(), c.get_alpha()): to_hex(c.get_facecolor()[0]) for c in collections}
    colours = {"forward": palette.sky, "input gradient": palette.orange, "weight gradient": palette.green}
    assert looks == {(name, alpha): colour for name, colour in colours.items() for alpha in (1.0, 0.5)}
    pale = {tuple(p.vertices.min(axis=0)) for c in collections if c.get_alpha() < 1 for p in c.get_paths()}
    assert {start for start, low in pale if round(low + 0.42) == 1} == {
        start for action, start, _ in timeline.rows[1] if action.stage == 2
    }
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == list(colours)


def test_the_title_says_how_long_it_took_and_how_much_is_bubble():
    axes = gantt(simulate(one_f_one_b(8, 8), Durations(1e-3, 1e-3, 1e-3))).axes[0]
    assert axes.get_title(loc="left") == "45 ms, of which 47% bubble"
    assert axes.get_xlabel() == "ms" and [t.get_text() for t in axes.get_yticklabels()][:2] == ["rank 0", "rank 1"]


def test_a_measured_step_begins_at_zero_and_can_be_cut_off():
    late = Timeline([[Timed(Action("F", 0, 0), 7.0, 8.0), Timed(Action("B", 0, 0), 9.0, 11.0)], []])
    assert bars_of(gantt(late)) == [("B", 0, 2.0, 4.0), ("F", 0, 0.0, 1.0)]
    assert bars_of(gantt(late, until=3.0)) == [("B", 0, 2.0, 3.0), ("F", 0, 0.0, 1.0)]
    assert bars_of(gantt(late, until=2.0)) == [("F", 0, 0.0, 1.0)]


def test_bars_that_are_too_narrow_have_no_number():
    assert not gantt(simulate(one_f_one_b(4, 300))).axes[0].texts


def test_there_is_something_to_draw():
    with pytest.raises(ValueError, match=r"0\.0 s to draw: expected more than 0"):
        gantt(Timeline([[], []]))
