"""The picture of the course: the loops as rings, and the labs on them, filled as far as the reader has come."""

import math
from collections.abc import Collection, Mapping

from threeloops.lab.course import journal
from threeloops.lab.course.loops import LOOPS, Lab, labs
from threeloops.lab.widgets import style
from threeloops.lab.widgets.style import palette

__all__ = ["course_map"]

_RADIUS = {"start": 0.0, "inner": 1.0, "training": 1.85, "product": 2.7, "meet": 3.5}
_COLOUR = {
    "start": palette.ink,
    "inner": palette.vermillion,
    "training": palette.blue,
    "product": palette.green,
    "meet": palette.purple,
}
_NODE = 0.29


def _passed(lab: Lab, progress: Mapping[str, Collection[str] | int]) -> int:
    """How many checks of a lab are passed; `progress` maps lab names to them or to their number."""
    done = progress.get(lab.name, 0)
    return min(done if isinstance(done, int) else len(done), lab.checks)


def _position(lab: Lab) -> tuple[float, float]:
    """Clockwise from the top of its loop."""
    ring = [other.number for other in labs() if other.loop == lab.loop]
    angle = math.pi / 2 - 2 * math.pi * ring.index(lab.number) / len(ring)
    return _RADIUS[lab.loop] * math.cos(angle), _RADIUS[lab.loop] * math.sin(angle)


def course_map(progress: Mapping[str, Collection[str] | int] | None = None):
    """A matplotlib Figure of all labs; `progress` by lab name, by default the reader's own record."""
    progress = journal.passed() if progress is None else progress
    fig, (rings, names) = style.figure(2, 1, width=8, height=10, gridspec_kw={"height_ratios": [1, 1.25]})
    done = sum(_passed(lab, progress) for lab in labs())
    checks = sum(lab.checks for lab in labs())
    fig.suptitle(f"Three loops, {len(labs())} labs: {done} of {checks} checks passed", fontsize=11, alpha=0.75)
    _draw_rings(rings, progress)
    _draw_names(names, progress)
    return fig


def _draw_rings(axes, progress) -> None:
    from matplotlib.patches import Circle, Wedge

    for loop, radius in _RADIUS.items():
        if radius:
            axes.add_patch(Circle((0, 0), radius, fill=False, color=_COLOUR[loop], linewidth=2.5, alpha=0.45))
    for lab in labs():
        x, y = _position(lab)
        part = _passed(lab, progress) / lab.checks
        axes.add_patch(Circle((x, y), _NODE, facecolor="white", edgecolor=_COLOUR[lab.loop], linewidth=1.2, zorder=3))
        if part:
            thick = _NODE if part == 1 else 0.36 * _NODE
            turn = 90 - 360 * part
            axes.add_patch(Wedge((x, y), _NODE, turn, 90, width=thick, color=_COLOUR[lab.loop], linewidth=0, zorder=4))
        ink = "white" if part == 1 else palette.ink
        axes.text(x, y, f"{lab.number:02d}", ha="center", va="center", fontweight="bold", color=ink, zorder=5)
    reach = max(_RADIUS.values()) + 1.3 * _NODE
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axes.axis("off")


def _draw_names(axes, progress) -> None:
    y = 0.0
    for loop, name in LOOPS.items():
        axes.text(0, y, name, color=_COLOUR[loop], fontweight="bold", fontsize=11, va="center")
        for lab in (lab for lab in labs() if lab.loop == loop):
            y -= 1
            axes.text(0.02, y, f"{lab.number:02d}", fontsize=10, va="center", color=_COLOUR[loop], fontweight="bold")
            axes.text(0.075, y, lab.title, fontsize=10, va="center")
            axes.text(0.42, y, lab.question, fontsize=10, va="center", alpha=0.7, style="italic")
            if done := _passed(lab, progress):
                mark = f"{done}/{lab.checks}"
                axes.text(1.0, y, mark, fontsize=10, va="center", ha="right", color=_COLOUR[loop], fontweight="bold")
        y -= 1.25
    axes.set(xlim=(0, 1), ylim=(y + 0.6, 0.8))
    axes.axis("off")
