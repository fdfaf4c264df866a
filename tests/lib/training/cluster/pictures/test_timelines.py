"""The Gantt chart, read back from the artists that matplotlib draws."""

import math
from collections import Counter

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.quiver import Quiver
from threeloops.figures import palette
from threeloops.lab import animate
from threeloops.lab.widgets import style
from threeloops.training.cluster.cluster import Run
from threeloops.training.cluster.machine.calls import COMMUNICATION, COMPUTE
from threeloops.training.cluster.machine.records import Message, Span
from threeloops.training.cluster.machine.topology import uniform
from threeloops.training.cluster.pictures import gantt

NAMES = ["data parallel", "pipeline", "two nodes"]


def made(ranks, spans=(), messages=(), seconds=1.0):
    """A run by hand; a span is (rank, timeline, start, end, what), a message (source, target, start, arrived)."""
    sent = [Message(a, b, 8, "world", 0, start, start, end, end, received=True) for a, b, start, end in messages]
    spans = tuple(Span(*span) for span in spans)
    return Run(uniform(ranks), (None,) * ranks, (seconds,) * ranks, tuple(sent), spans, 0)


def axes_of(figure):
    (axes,) = figure.axes
    return axes


def lanes_of(figure):
    """(rank, timeline) of each lane by its height on the axes, from the labels that a reader sees."""
    axes, found, rank = axes_of(figure), {}, None
    for y, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True):
        words = label.get_text().split()
        if words[0] == "rank":
            rank, words = int(words[1]), words[2:]
        found[y] = rank, " ".join(words)
    return found


def bars_of(figure):
    """(kind, middle of the lane, start, end) of each bar."""
    found = []
    for bars in axes_of(figure).collections:
        if type(bars) is PolyCollection:
            for path in bars.get_paths():
                (left, low), (right, high) = path.vertices.min(axis=0), path.vertices.max(axis=0)
                found.append((bars.get_label(), round((low + high) / 2, 9), left, right))
    return found


def arrows_of(figure):
    """(start, y, seconds, change of y) of each arrow."""
    found = [c for c in axes_of(figure).collections if isinstance(c, Quiver)]
    return [a for q in found for a in zip(q.X.tolist(), q.Y.tolist(), q.U.tolist(), q.V.tolist(), strict=True)]


@pytest.mark.parametrize("name", NAMES)
def test_every_span_is_a_bar_on_its_lane_at_exactly_its_times(runs, name):
    run = runs[name]
    figure = gantt(run)
    timelines = {"compute": COMPUTE, "communication": COMMUNICATION}
    only = {"pipeline": COMPUTE, "two nodes": COMMUNICATION}.get(name)
    lanes = {round(y, 9): (r, timelines.get(t, only)) for y, (r, t) in lanes_of(figure).items()}
    drawn = [(*lanes[y], start, end) for _, y, start, end in bars_of(figure)]
    assert Counter(drawn) == Counter((s.rank, s.timeline, s.start, s.end) for s in run.spans)


@pytest.mark.parametrize("name", NAMES)
def test_every_message_is_an_arrow_from_its_start_to_its_arrival_between_the_right_lanes(runs, name):
    run = runs[name]
    figure = gantt(run)
    heights = sorted(lanes_of(figure).items())
    drawn = []
    for start, y, seconds, rise in arrows_of(figure):
        tail, head = (min(heights, key=lambda lane: abs(lane[0] - at))[1] for at in (y, y + rise))
        drawn.append((tail[0], head[0], {tail[1], head[1]} <= {"communication", ""}, start, start + seconds))
    expected = [(m.source, m.target, True, m.start, m.arrived) for m in run.messages]
    assert len(drawn) == len(expected) > 0
    for ours, theirs in zip(sorted(drawn), sorted(expected), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-14)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("data parallel", [t for r in range(4) for t in (f"rank {r}  compute", "communication")]),
        ("pipeline", ["rank 0", "rank 1", "rank 2"]),
        (
            "two nodes",
            [t for r in range(4) for t in (f"rank {r}  compute", "communication")] + [f"rank {r}" for r in range(4, 8)],
        ),
    ],
)
def test_there_is_one_lane_for_each_timeline_that_is_used(runs, name, labels):
    axes = axes_of(gantt(runs[name]))
    assert [label.get_text() for label in axes.get_yticklabels()] == labels
    assert (sorted(axes.get_yticks()) == axes.get_yticks()).all() and axes.yaxis_inverted()


def test_a_message_leaves_the_senders_lane_and_ends_at_the_receivers():
    message = Message(1, 0, 8, "world", 0, 0.2, 0.2, 0.4, 0.5, COMMUNICATION, received=True)
    spans = [(rank, timeline, 0.0, 1.0, "busy") for rank in (0, 1) for timeline in (COMPUTE, COMMUNICATION)]
    run = made(2, spans)
    figure = gantt(Run(run.topology, run.results, run.clocks, (message,), run.spans, 0))
    heights = {lane: y for y, lane in lanes_of(figure).items()}
    ((start, y, seconds, rise),) = arrows_of(figure)
    assert (start, seconds) == pytest.approx((0.2, 0.3))
    low, high = heights[0, "communication"], heights[1, "communication"]
    assert low < y + rise < low + 0.5 and high - 0.5 < y < high, "from the upper edge of one to the lower of the other"


def test_a_rank_that_does_nothing_still_has_its_lane():
    axes = axes_of(gantt(made(3, messages=[(0, 2, 0.1, 0.4)])))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["rank 0", "rank 1", "rank 2"]


def test_a_line_goes_on_until_a_rank_returns(runs):
    run = runs["pipeline"]
    axes = axes_of(gantt(run))
    lines = [segment for c in axes.collections if hasattr(c, "get_segments") for segment in c.get_segments()]
    assert [(line[0][0], line[1][0]) for line in lines] == [(0.0, clock) for clock in run.clocks]
    assert len(set(run.clocks)) > 1


@pytest.mark.parametrize(
    ("most", "every", "count"), [(0, 24, 0), (1, 24, 1), (7, 24, 4), (16, 6, 16), (50, 2, 48), (95, 2, 48)]
)
def test_above_the_most_arrows_they_are_thinned_evenly_and_the_axis_says_so(runs, most, every, count):
    """Each of the four ranks sends 24 messages."""
    figure = gantt(runs["data parallel"], most_arrows=most)
    arrows = arrows_of(figure)
    assert len(arrows) == count
    note = f"({count} of 96 messages are drawn, one in {every} of each rank)"
    assert (note in axes_of(figure).get_xlabel()) is (most > 0), "who asks for none needs no word about it"
    if count >= 4:
        assert set(Counter(start for start, *_ in arrows).values()) == {4}, "whole steps of the ring"


def test_without_thinning_there_is_no_note(runs):
    figure = gantt(runs["data parallel"], most_arrows=96)
    assert len(arrows_of(figure)) == 96 and axes_of(figure).get_xlabel() == "ms"


def test_a_window_shows_what_overlaps_it_and_counts_only_that():
    spans = [(0, COMPUTE, n / 10, (n + 1) / 10, f"op {n}") for n in range(10)]
    messages = [(0, 1, n / 10 + 0.01, n / 10 + 0.12) for n in range(9)]
    figure = gantt(made(2, spans, messages), window=(0.35, 0.55))
    assert [(start, end) for _, _, start, end in bars_of(figure)] == [(n / 10, (n + 1) / 10) for n in (3, 4, 5)]
    assert [start for start, *_ in arrows_of(figure)] == [n / 10 + 0.01 for n in (3, 4, 5)]
    assert axes_of(figure).get_xlim() == (0.35, 0.55)
    assert (
        "(1 of 3 messages" in axes_of(gantt(made(2, spans, messages), window=(0.35, 0.55), most_arrows=1)).get_xlabel()
    )
    texts = {t.get_text(): t.get_position()[0] for t in axes_of(figure).texts}
    assert texts == pytest.approx({"op 3": 0.375, "op 4": 0.45, "op 5": 0.525}), "in the middle of what is seen"


def test_a_kind_has_the_same_colour_in_every_window(runs):
    run = runs["data parallel"]
    shown = [axes_of(gantt(run, window=w)).collections for w in (None, (1e-3, 2e-3))]
    colours = [{c.get_label(): to_hex(c.get_facecolor()[0]) for c in cs if len(c.get_facecolor())} for cs in shown]
    assert colours[0]["backward"] == colours[1]["backward"] == palette.blue != colours[0]["forward"]
    assert colours[0]["all_reduce"] == palette.orange


@pytest.mark.parametrize("until", [0.0, 1e-4, 1.25e-3, 1.9e-3, 4e-3])
def test_a_frame_holds_what_has_happened_and_arrows_grow(runs, until):
    run = runs["data parallel"]
    whole, figure = gantt(run), gantt(run, until=until)
    begun = [s for s in run.spans if s.start <= until]
    assert Counter((s.start, min(s.end, until)) for s in begun) == Counter((a, b) for _, _, a, b in bars_of(figure))
    rises = {(start, y): (seconds, rise) for start, y, seconds, rise in arrows_of(whole)}
    under_way = 0
    for start, y, seconds, rise in arrows_of(figure):
        full_seconds, full_rise = rises.pop((start, y))
        part = min(1.0, (until - start) / full_seconds)
        under_way += part < 1
        assert (seconds, rise) == pytest.approx((part * full_seconds, part * full_rise), abs=1e-18)
    assert all(start > until for start, _ in rises)
    assert bool(under_way) == any(m.start <= until < m.arrived for m in run.messages)
    for limits in ("get_xlim", "get_ylim"):
        assert getattr(axes_of(figure), limits)() == getattr(axes_of(whole), limits)()


def test_the_last_frame_is_the_whole(runs):
    run = runs["pipeline"]
    assert bars_of(gantt(run, until=run.seconds)) == bars_of(gantt(run))
    assert arrows_of(gantt(run, until=run.seconds)) == arrows_of(gantt(run))


def test_names_are_written_where_they_fit_else_their_number_else_the_legend_has_them(runs):
    axes = axes_of(gantt(runs["data parallel"]))
    texts = Counter(text.get_text() for text in axes.texts)
    assert texts["all_reduce"] == 16 and texts["backward 3"] == 0 and texts["3"] == 8
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["forward", "backward", "step"]
    assert axes_of(gantt(runs["pipeline"])).get_legend() is None


def test_one_bar_with_the_whole_name_is_enough():
    spans = [(0, COMPUTE, 0.0, 0.6, "long"), (0, COMPUTE, 0.6, 0.61, "long"), (0, COMPUTE, 0.61, 0.62, "short")]
    axes = axes_of(gantt(made(1, spans)))
    assert [text.get_text() for text in axes.texts] == ["long"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["short"]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_is_wider_than_its_bar_and_the_legend_leaves_the_title_alone(runs, name):
    figure = gantt(runs[name])
    figure.draw_without_rendering()
    axes, renderer = axes_of(figure), figure.canvas.get_renderer()
    edges = [(y, *axes.transData.transform([(start, 0), (end, 0)])[:, 0]) for _, y, start, end in bars_of(figure)]
    for text in axes.texts:
        box, x = text.get_window_extent(renderer), axes.transData.transform(text.get_position())[0]
        inside = [(a, b) for lane, a, b in edges if a <= x <= b and math.isclose(lane, text.get_position()[1])]
        assert any(a <= box.x0 and box.x1 <= b for a, b in inside), text.get_text()
    title = axes._left_title.get_window_extent(renderer)
    assert not axes.get_legend() or title.x1 < axes.get_legend().get_window_extent(renderer).x0


@pytest.mark.parametrize(
    ("seconds", "unit", "middle"), [(4e-5, "µs", "20"), (0.03, "ms", "15"), (2.0, "s", "1"), (0.0, "µs", "0.5")]
)
def test_the_axis_is_in_a_unit_that_suits_it(seconds, unit, middle):
    figure = gantt(made(1, [(0, COMPUTE, 0.0, seconds, "only")], seconds=seconds))
    axes = axes_of(figure)
    assert axes.get_xlabel() == unit and axes.xaxis.get_major_formatter()((seconds or 1e-6) / 2, 0) == middle
    assert axes.get_title("left").startswith("1 rank, 10 µs and 1 GB/s")


@pytest.mark.parametrize(
    ("ranks", "spans", "messages"),
    [
        (1, [], []),
        (1, [(0, COMPUTE, 0.0, 1.0, "")], []),
        (2, [(0, COMPUTE, 0.5, 0.5, "nothing")], [(0, 1, 0.2, 0.2)]),
        (16, [(r, t, 0.1 * t, 0.9, "layer 3 all_to_all") for r in range(16) for t in (0, 1)], [(0, 15, 0.1, 0.6)] * 30),
    ],
    ids=["nothing at all", "one rank", "no time passes", "16 ranks"],
)
def test_it_takes_the_colours_of_a_light_page_and_of_a_dark_one(ranks, spans, messages):
    figure = gantt(made(ranks, spans, messages))
    picture = style.svg(figure, "a run")
    assert not [colour for colour in (palette.ink, "#000000", "#ffffff") if colour in picture]
    assert "currentColor" in picture and len(picture) < 300_000 and len(style.png(figure)[0]) < 300_000
    on_bars = {to_hex(text.get_color()) for text in axes_of(figure).texts}
    assert not on_bars & {palette.ink, "#000000", "#ffffff"}, "bars do not change their colours: nor may their names"


def test_its_frames_are_an_animation(runs):
    run = runs["pipeline"]
    animate(lambda until: gantt(run, until=until), [run.seconds * n / 6 for n in range(1, 7)], caption="a pipeline")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": (0.5, 0.5)}, r"window = \(0.5, 0.5\) s: expected 0 ≤ start < end; the run took 1 s"),
        ({"window": (-1.0, 0.5)}, "expected 0 ≤ start"),
        ({"window": (0.0, math.nan)}, "expected 0 ≤ start"),
        ({"until": -0.1}, "until = -0.1 s: expected a time of the run, 0 to 1 s"),
        ({"until": math.nan}, "until = nan"),
        ({"most_arrows": -1}, "most_arrows = -1: expected 0 or more"),
    ],
)
def test_options_that_mean_nothing(options, message):
    with pytest.raises(ValueError, match=message):
        gantt(made(1), **options)
