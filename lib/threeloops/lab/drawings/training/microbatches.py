"""Microbatches on their way through the stages of a pipeline, and the activations that each rank keeps meanwhile."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from threeloops.figures import figure, name_bar, name_rows, palette
from threeloops.training.pipeline.draw import COLOURS
from threeloops.training.pipeline.schedule import Action, Kind
from threeloops.training.pipeline.simulate import Timed, Timeline
from threeloops.units import readable_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_flight", "timeline_of"]

_PART_WIDTH = 0.72
"""The share of the width for the timelines. The rest shows the activations that are kept."""


def timeline_of(
    rows: Sequence[Sequence[tuple[Kind, int]]],
    ends: Sequence[Sequence[float]],
    forward: Sequence[float],
    backward: Sequence[float],
) -> Timeline:
    """Return the timeline of rows such as [("F", 0), ("B", 0)], from the ends of their actions and seconds per rank."""
    timed_rows = []
    for rank, (row, done) in enumerate(zip(rows, ends, strict=True)):
        timed = []
        for (kind, microbatch), end in zip(row, done, strict=True):
            seconds = forward[rank] if kind == "F" else backward[rank]
            timed.append(Timed(Action(kind, rank, microbatch), end - seconds, end))
        timed_rows.append(timed)
    return Timeline(timed_rows)


def _in_flight(row: list[Timed], at: float) -> list[int]:
    """The microbatches whose activations a rank keeps at some time: from the start of the forward to the end of the
    backward (of one in two parts, of the second)."""
    begun = {timed.action.microbatch for timed in row if timed.action.kind == "F" and timed.start < at}
    return sorted(begun - {timed.action.microbatch for timed in row if timed.action.kind in "BW" and timed.end <= at})


def draw_flight(timelines: Mapping[str, Timeline], at: float, *, whole: bool = False) -> "Figure":
    """Draw several schedules at one moment, each with one stage per rank: to the left the ranks' actions so far, to the
    right a square for each microbatch in flight.

    With `whole`, `at` is the length of the axis: whole steps, and squares for the most that are in flight at once.
    """
    ranks = max(len(timeline.rows) for timeline in timelines.values())
    fig, _ = figure(width=9.5, height=0.2 + len(timelines) * (0.3 + 0.26 * ranks))
    fig.clear()
    longest = max(timeline.seconds for timeline in timelines.values())
    most = max(max(timeline.peak()) for timeline in timelines.values())
    grid = fig.add_gridspec(len(timelines), 2, width_ratios=(_PART_WIDTH, 1 - _PART_WIDTH))
    for number, (name, timeline) in enumerate(timelines.items()):
        left, right = (fig.add_subplot(grid[number, column]) for column in (0, 1))
        for rank, row in enumerate(timeline.rows):
            for timed in row:
                if timed.start < at:
                    _box(left, timed.start, min(timed.end, at), rank, COLOURS[timed.action.kind], timed)
            microbatches = [str(microbatch) for microbatch in _in_flight(row, at)]
            for place, name_of_square in enumerate([""] * int(timeline.peak()[rank]) if whole else microbatches):
                right.barh([rank], [0.8], left=place, height=0.72, color=palette.yellow)
                name_bar(right, place + 0.4, rank, name_of_square, 8)
        if not whole:
            left.axvline(at, color=palette.ink, lw=1.0)
        left.set(xlim=(0, longest), ylim=(len(timeline.rows) - 0.5, -0.5), xticks=[])
        name_rows(left, range(len(timeline.rows)), [f"rank {rank}" for rank in range(len(timeline.rows))])
        when = f": {readable_seconds(timeline.seconds)}" if whole else f" after {readable_seconds(at) if at else '0 s'}"
        left.set_title(name + when, loc="left", fontsize=10)
        right.set(xlim=(-0.3, most), ylim=(len(timeline.rows) - 0.5, -0.5), xticks=[], yticks=[])
        right.set_title("most in flight" if whole else "in flight", loc="left", fontsize=10)
        for axes in (left, right):
            axes.grid(visible=False)
            for side in ("left", "bottom"):
                axes.spines[side].set_visible(False)
    return fig


def _box(axes: "Axes", start: float, end: float, rank: int, colour: str, timed: Timed) -> None:
    axes.barh([rank], [end - start], left=start, height=0.82, color=colour, edgecolor="white", lw=0.6)
    if end == timed.end:
        name_bar(axes, (start + end) / 2, rank, str(timed.action.microbatch), 8)
