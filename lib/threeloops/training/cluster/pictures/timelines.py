"""A run as a Gantt chart: a lane for each timeline of a rank, a bar for each span, an arrow for each message."""

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from threeloops.figures import (
    ON_DARK,
    ON_LIGHT,
    bar_corners,
    figure,
    fitting,
    legend_above,
    name_bar,
    name_rows,
    palette,
    text_inches,
    time_axis,
)
from threeloops.training.cluster.cluster import Run
from threeloops.training.cluster.machine.calls import COMMUNICATION, COMPUTE
from threeloops.training.cluster.machine.records import Message, Span
from threeloops.units import readable_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["gantt"]

_COMPUTATION = (palette.sky, palette.blue, palette.grey, palette.yellow)
_COLLECTIVES = {
    "all_reduce": palette.orange,
    "all_gather": palette.green,
    "reduce_scatter": palette.purple,
    "all_to_all": palette.yellow,
    "barrier": palette.grey,
}
_OTHER_COLLECTIVE = palette.vermillion
_WIDTH = 10.0
_PLOT_WIDTH = 8.3
"""Inches of the figure, and about as many of its axes."""
_HALF = 0.42
_RANK_GAP = 0.9
"""Half the height of a bar, and the gap between two ranks, if a lane has height 1."""


class _Lane(NamedTuple):
    rank: int
    timeline: int
    y: float


@dataclass(frozen=True)
class _Chart:
    axes: "Axes"
    lanes: tuple[_Lane, ...]
    start: float
    end: float
    until: float
    lane_inches: float

    @cached_property
    def y(self) -> dict[tuple[int, int], float]:
        """The height of the middle of each lane, by rank and timeline."""
        return {(lane.rank, lane.timeline): lane.y for lane in self.lanes}

    def inches(self, seconds: float) -> float:
        return seconds / (self.end - self.start) * _PLOT_WIDTH


def gantt(
    run: Run, *, window: tuple[float, float] | None = None, until: float | None = None, most_arrows: int = 200
) -> "Figure":
    """Draw the timelines of each rank, and a Lamport diagram to scale: a message is an arrow from the moment at which
    it leaves to the moment at which it arrives.

    A lane on which nothing happens in the whole run is left out, and a thin line continues until a rank returns. All
    times are virtual seconds, in the data of the axes as well. Their labels are in µs, ms or s.

    Args:
        window: draw this part of the run, (start, end). Labels count from its start.
        until: draw the run up to this time, on the axes of the whole: a frame of an animation, as in `animate(lambda t:
            gantt(run, until=t), [run.seconds * n / 20 for n in range(1, 21)])`.
        most_arrows: if more messages fall into the window, only one in k of each rank is drawn, and the label of the
            axis says so. 0: draw none, and say nothing about it.
    """
    start, end = (0.0, run.seconds or 1e-6) if window is None else window
    if not 0 <= start < end < math.inf:
        raise ValueError(f"window = ({start}, {end}) s: expected 0 ≤ start < end; the run took {run.seconds:g} s")
    if until is not None and not 0 <= until < math.inf:
        raise ValueError(f"until = {until} s: expected a time of the run, 0 to {run.seconds:g} s")
    if most_arrows < 0:
        raise ValueError(f"most_arrows = {most_arrows}: expected 0 or more")
    lanes = _lanes(run)
    height = lanes[-1].y + 1
    inches = max(0.07, min(0.32, 7.5 / height))
    fig, axes = figure(width=_WIDTH, height=1.2 + inches * height)
    chart = _Chart(axes, lanes, start, end, math.inf if until is None else until, inches)
    _draw_frame(chart, run)
    _draw_bars(chart, run.spans)
    messages = [m for m in run.messages if m.start <= end and m.arrived >= start]
    drawn, every = _thinned(messages, most_arrows)
    _draw_arrows(chart, drawn)
    unit = time_axis(axes, end - start, start)
    if 0 < len(drawn) < len(messages):
        note = f"{len(drawn):,} of {len(messages):,} messages are drawn, one in {every} of each rank"
        axes.set_xlabel(f"{unit}   ({note})")
    seconds = readable_seconds(run.seconds) if window is None else f"{readable_seconds(end - start)} of the run"
    axes.set_title(f"{run.topology.name}: {seconds}")
    return fig


def _lanes(run: Run) -> tuple[_Lane, ...]:
    """The lanes that something happens on, from top to bottom; a rank that does nothing has one as well."""
    busy = {(span.rank, span.timeline) for span in run.spans}
    for message in run.messages:
        busy |= {(message.source, message.timeline), (message.target, message.timeline)}
    lanes = []
    y = 0.0
    for rank in range(run.topology.ranks):
        for timeline in [t for t in (COMPUTE, COMMUNICATION) if (rank, t) in busy] or [COMPUTE]:
            lanes.append(_Lane(rank, timeline, y))
            y += 1
        y += _RANK_GAP
    return tuple(lanes)


def _draw_frame(chart: _Chart, run: Run) -> None:
    """Draw a line for each lane, with the name of the rank on its first lane, and of the timeline if there are two."""
    axes = chart.axes
    lanes = chart.lanes
    room = 0.006 * (chart.end - chart.start) if chart.end >= run.seconds else 0.0  # for the heads of the last arrows
    axes.set_xlim(chart.start, chart.end + room)
    axes.set_ylim(lanes[-1].y + 0.6, -0.6)
    count = Counter(lane.rank for lane in lanes)
    names = []
    for number, (rank, timeline, y) in enumerate(lanes):
        words = [f"rank {rank}"] if not number or lanes[number - 1].rank != rank else []
        if count[rank] == 2 and chart.lane_inches > 0.12:
            words.append("compute" if timeline == COMPUTE else "communication")
        names.append("  ".join(words))
        axes.hlines(y, 0.0, min(run.clocks[rank], chart.until), color=palette.grey, lw=0.8, zorder=1)
    name_rows(axes, [lane.y for lane in lanes], names, fontsize=min(9.0, 60 * chart.lane_inches))
    axes.spines["left"].set_visible(False)
    if chart.until < math.inf:
        axes.axvline(chart.until, color=palette.vermillion, lw=1.2)


def _kinds(spans: Iterable[Span]) -> Iterator[tuple[str, str, list[Span]]]:
    """Spans whose names differ in numbers alone ("backward 3"), as name without number, colour, spans."""
    kinds: dict[tuple[int, str], list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span.start, span.rank)):
        plain = re.sub(r"[\s._:#-]*\d+", "", span.what).strip()
        kinds[span.timeline, plain or ("computation" if span.timeline == COMPUTE else "communication")].append(span)
    colours = itertools.cycle(_COMPUTATION)
    for (timeline, name), alike in kinds.items():
        yield name, next(colours) if timeline == COMPUTE else _COLLECTIVES.get(name, _OTHER_COLLECTIVE), alike


def _draw_bars(chart: _Chart, spans: Iterable[Span]) -> None:
    """Draw one collection for each kind of span. Its name is on a bar if it fits, and otherwise in the legend."""
    from matplotlib.collections import PolyCollection

    legend = {}
    for kind, colour, every in _kinds(spans):
        shown = [
            span for span in every if span.start <= chart.end and (span.end > chart.start or span.start == chart.start)
        ]
        corners = []
        edges = []
        for span in shown:
            if span.start <= chart.until:
                y = chart.y[span.rank, span.timeline]
                end = min(span.end, chart.until)
                corners.append(bar_corners(span.start, end, y, _HALF))
                edges.append("white" if chart.inches(end - span.start) > 0.08 else colour)  # it would hide a thin bar
        bars = PolyCollection(corners, facecolors=colour, edgecolors=edges, lw=0.6, label=kind, zorder=2)
        chart.axes.add_collection(bars)
        named = [_write_name(chart, span, span.what or kind, colour) for span in shown]
        if shown and not any(named):
            legend[kind] = colour
    if legend:
        legend_above(chart.axes, legend, fontsize=9, columnspacing=1.2)


def _write_name(chart: _Chart, span: Span, name: str, colour: str) -> bool:
    """Whether the whole name fits on the part of the bar that is in the window."""
    size = min(9.0, 42 * chart.lane_inches)
    left = max(span.start, chart.start)
    right = min(span.end, chart.end)
    text = fitting(name, chart.inches(right - left), size)
    middle = (left + right) / 2
    if text and chart.inches(chart.until - middle) >= text_inches(text, size) / 2:
        name_bar(
            chart.axes,
            middle,
            chart.y[span.rank, span.timeline],
            text,
            size,
            color=ON_DARK if colour == palette.blue else ON_LIGHT,
            zorder=4,
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.2},  # hides arrows that pass
        )
    return text == name


def _thinned(messages: Iterable[Message], most: int) -> tuple[list[Message], int]:
    """Return at most `most` messages, every k-th of each sender for the smallest k that suffices, and this k."""
    by_sender: dict[int, list[Message]] = defaultdict(list)
    for message in sorted(messages, key=lambda m: (m.start, m.source, m.target)):
        by_sender[message.source].append(message)
    every = 1
    longest = max(map(len, by_sender.values()), default=0)
    while sum(-(-len(sent) // every) for sent in by_sender.values()) > most and every < longest:
        every += 1
    return [message for sent in by_sender.values() for message in sent[::every]][:most], every


def _draw_arrows(chart: _Chart, messages: Iterable[Message]) -> None:
    """Draw arrows between the facing edges of two lanes. The arrow of a message in flight ends where the message is."""
    arrows = []
    for message in messages:
        if message.start <= chart.until:
            source = chart.y[message.source, message.timeline]
            target = chart.y[message.target, message.timeline]
            side = _HALF if target > source else -_HALF
            seconds = message.arrived - message.start
            part = min(1.0, (chart.until - message.start) / seconds) if seconds else 1.0
            arrows.append((message.start, source + side, seconds * part, (target - source - 2 * side) * part))
    if arrows:
        chart.axes.quiver(
            *zip(*arrows, strict=True),
            angles="xy",
            scale_units="xy",
            scale=1,
            units="inches",
            width=0.011,
            headwidth=7,
            headlength=7,
            headaxislength=6,
            minlength=0,
            minshaft=1.2,
            color=palette.ink,
            alpha=0.75,
            zorder=3,
        )
