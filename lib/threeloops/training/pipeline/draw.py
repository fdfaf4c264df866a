"""Draw a pipeline step: a row per rank, and a bar per action with the number of its microbatch."""

from typing import TYPE_CHECKING

from threeloops.figures import bar_corners, figure, legend_above, name_bar, name_rows, palette, text_inches, time_axis
from threeloops.training.pipeline.simulate import Timeline
from threeloops.units import readable_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "gantt"]

COLOURS = {"F": palette.sky, "B": palette.orange, "I": palette.orange, "W": palette.green}
_WIDTH = 10.0
_PLOT_WIDTH = 9.0
"""Inches of the figure, and about as many of its axes."""
_FONT = 9.0
_PALER = 0.5


def gantt(timeline: Timeline, *, until: float | None = None) -> "Figure":
    """Draw a step, simulated or measured. The white parts between bars are the bubble.

    A rank's stages after its first are paler. The axes hold seconds from the first start, and labels are in µs, ms or
    s.

    Args:
        until: draw only this many seconds.
    """
    from matplotlib.collections import PolyCollection

    end = timeline.seconds if until is None else until
    if not end > 0:
        raise ValueError(f"{end} s to draw: expected more than 0; is there an action in the schedule?")
    ranks = len(timeline.rows)
    fig, axes = figure(width=_WIDTH, height=1.3 + min(0.42, 7.5 / ranks) * ranks)
    kinds: dict[tuple[str, str, bool], list[list[tuple[float, float]]]] = {}
    for rank, row in enumerate(timeline.rows):
        first = min((timed.action.stage for timed in row), default=0)
        for action, start, stop in row:
            left = start - timeline.start
            right = min(stop - timeline.start, end)
            if left < end:
                bars = kinds.setdefault((action.kind, action.name, action.stage > first), [])
                bars.append(bar_corners(left, right, rank, 0.42))
                text = str(action.microbatch)
                if text_inches(text, _FONT) < (right - left) / end * _PLOT_WIDTH:
                    name_bar(axes, (left + right) / 2, rank, text, _FONT)
    for (kind, name, later), bars in kinds.items():
        alpha = _PALER if later else 1.0
        axes.add_collection(
            PolyCollection(bars, facecolors=COLOURS[kind], edgecolors="white", lw=0.6, alpha=alpha, label=name)
        )
    axes.set(xlim=(0, end), ylim=(ranks - 0.4, -0.6))
    name_rows(axes, range(ranks), [f"rank {rank}" for rank in range(ranks)])
    time_axis(axes, end)
    bubble = sum(timeline.bubble) / ranks
    axes.set_title(f"{readable_seconds(timeline.seconds)}, of which {bubble:.0%} bubble")
    legend_above(axes, {name: COLOURS[kind] for kind, name, _ in kinds})
    return fig
