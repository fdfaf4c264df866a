"""Draw a pipeline step: a row per rank, and a bar per action with the number of its microbatch."""

from typing import TYPE_CHECKING

from threeloops.figures import ON_LIGHT, figure, palette, text_inches
from threeloops.training.pipeline.simulate import Timeline
from threeloops.units import readable_seconds, time_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["gantt"]

_COLOURS = {"F": palette.sky, "B": palette.orange, "I": palette.orange, "W": palette.green}
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
    from matplotlib.patches import Patch

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
                corners = [(left, rank - 0.42), (left, rank + 0.42), (right, rank + 0.42), (right, rank - 0.42)]
                kinds.setdefault((action.kind, action.name, action.stage > first), []).append(corners)
                text = str(action.microbatch)
                if text_inches(text, _FONT) < (right - left) / end * _PLOT_WIDTH:
                    middle = (left + right) / 2
                    axes.text(middle, rank, text, ha="center", va="center_baseline", fontsize=_FONT, color=ON_LIGHT)
    for (kind, name, later), bars in kinds.items():
        alpha = _PALER if later else 1.0
        axes.add_collection(
            PolyCollection(bars, facecolors=_COLOURS[kind], edgecolors="white", lw=0.6, alpha=alpha, label=name)
        )
    axes.set(xlim=(0, end), ylim=(ranks - 0.4, -0.6))
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    scale, unit = time_unit(end)
    axes.xaxis.set_major_formatter(lambda x, _: f"{round(x * scale, 9):,.10g}")
    axes.set_xlabel(unit)
    bubble = sum(timeline.bubble) / ranks
    axes.set_title(f"{readable_seconds(timeline.seconds)}, of which {bubble:.0%} bubble")
    legend = {(kind, name): Patch(facecolor=_COLOURS[kind], label=name) for kind, name, _ in kinds}
    axes.legend(handles=list(legend.values()), loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, borderpad=0.2)
    return fig
