"""Microbatches on their way through the stages of a pipeline, and the activations that each rank keeps meanwhile."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from threeloops.figures import figure, name_bar, name_rows, palette
from threeloops.training.pipeline.draw import COLOURS
from threeloops.training.pipeline.simulate import Timed, Timeline
from threeloops.units import readable_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_flight"]

_PART_WIDTH = 0.72
"""The share of the width for the timelines. The rest shows the activations that are kept."""


def _in_flight(row: list[Timed], at: float) -> list[int]:
    """The microbatches whose activations a rank keeps at some time: from the start of the forward to the end of the
    backward (of one in two parts, of the second)."""
    begun = {timed.action.microbatch for timed in row if timed.action.kind == "F" and timed.start < at}
    return sorted(begun - {timed.action.microbatch for timed in row if timed.action.kind in "BW" and timed.end <= at})


def draw_flight(timelines: Mapping[str, Timeline], at: float) -> "Figure":
    """Draw several schedules at one moment, each with one stage per rank: to the left the ranks' actions so far, to the
    right a square for each microbatch in flight."""
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
            for place, microbatch in enumerate(_in_flight(row, at)):
                right.barh([rank], [0.8], left=place, height=0.72, color=palette.yellow)
                name_bar(right, place + 0.4, rank, str(microbatch), 8)
        left.axvline(at, color=palette.ink, lw=1.0)
        left.set(xlim=(0, longest), ylim=(len(timeline.rows) - 0.5, -0.5), xticks=[])
        name_rows(left, range(len(timeline.rows)), [f"rank {rank}" for rank in range(len(timeline.rows))])
        left.set_title(f"{name} after {readable_seconds(at) if at else '0 s'}", loc="left", fontsize=10)
        right.set(xlim=(-0.3, most), ylim=(len(timeline.rows) - 0.5, -0.5), xticks=[], yticks=[])
        right.set_title("in flight", loc="left", fontsize=10)
        for axes in (left, right):
            axes.grid(visible=False)
            for side in ("left", "bottom"):
                axes.spines[side].set_visible(False)
    return fig


def _box(axes: "Axes", start: float, end: float, rank: int, colour: str, timed: Timed) -> None:
    axes.barh([rank], [end - start], left=start, height=0.82, color=colour, edgecolor="white", lw=0.6)
    if end == timed.end:
        name_bar(axes, (start + end) / 2, rank, str(timed.action.microbatch), 8)
