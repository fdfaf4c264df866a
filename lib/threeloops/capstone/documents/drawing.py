"""The figures of a plan, drawn: stacked bars, a pipeline's step, and curves, in the course's look on white paper."""

import io
from itertools import cycle
from textwrap import fill
from typing import TYPE_CHECKING

from threeloops.capstone.plan import Bars, Figure, Gantt, Lines
from threeloops.figures import bar_corners, fitting, name_bar, name_rows, palette, text_inches, time_axis
from threeloops.figures import figure as new_figure
from threeloops.units import readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

__all__ = ["draw", "png"]

_WIDTH = 8.0
_DPI = 200
_PARTS = (palette.sky, palette.orange, palette.green, palette.purple, palette.yellow, palette.vermillion, palette.grey)
_LINES = (palette.blue, palette.vermillion, palette.green, palette.orange, palette.purple, palette.sky)
_DASHES = ("-", "--", "-.", ":")
_SCALES = {"bytes": (2.0**-30, "GiB"), "share": (100.0, "%")}


def draw(figure: Figure, titled: bool = True) -> "Drawn":
    """A figure of a plan as matplotlib's, 8 inches wide. A page that has its title beside it needs none in it."""
    match figure:
        case Bars():
            drawn = _bars(figure)
        case Gantt():
            drawn = _gantt(figure)
        case Lines():
            drawn = _lines(figure)
    if titled:
        drawn.axes[0].set_title(fill(figure.title, 80))
    return drawn


def png(figure: Figure) -> tuple[bytes, int, int]:
    """The figure without its title as PNG at 200 dots per inch, and its width and height in pixels."""
    drawn = draw(figure, titled=False)
    buffer = io.BytesIO()
    drawn.savefig(buffer, dpi=_DPI, format="png")
    width, height = (int(inches * _DPI) for inches in drawn.get_size_inches())
    return buffer.getvalue(), width, height


def _bars(figure: Bars) -> "Drawn":
    scale, unit = _SCALES.get(figure.unit, (1.0, figure.unit))
    fig, axes = new_figure(width=_WIDTH, height=1.7 + 0.55 * len(figure.bars))
    ends = [0.0] * len(figure.bars)
    totals = [scale * sum(part.y[bar] for part in figure.parts) for bar in range(len(figure.bars))]
    longest = max([*totals, scale * (figure.limit or 0), 1e-12])
    for part, colour in zip(figure.parts, cycle(_PARTS), strict=False):
        lengths = [scale * value for value in part.y]
        axes.barh(range(len(ends)), lengths, left=ends, color=colour, edgecolor="white", lw=0.6, label=part.label)
        for bar, length in enumerate(lengths):
            inches = length / longest * 0.75 * _WIDTH
            text = fitting(f"{length:.3g}", inches, 9) if inches > text_inches("000", 9) else ""
            name_bar(axes, ends[bar] + length / 2, bar, text)
            ends[bar] += length
    for bar, end in enumerate(ends):
        axes.text(end + longest * 0.01, bar, f"{end:.4g} {unit}", va="center", fontsize=10)
    if figure.limit is not None:
        axes.axvline(scale * figure.limit, color=palette.ink, ls="--", lw=1.5, label=figure.limit_label or "limit")
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda at: at < len(labels) - len(figure.parts))  # the limit comes last
    axes.set(xlim=(0, 1.16 * longest), ylim=(len(ends) - 0.4, -0.6), xlabel=unit)
    axes.set_yticks(range(len(ends)), [fill(name, 26) for name in figure.bars])
    axes.grid(axis="y", visible=False)
    _legend(fig, [handles[at] for at in order], [labels[at] for at in order])
    return fig


def _gantt(figure: Gantt) -> "Drawn":
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    rows = len(figure.rows)
    fig, axes = new_figure(width=_WIDTH, height=1.5 + min(0.36, 4.5 / max(rows, 1)) * rows)
    end = max((span.end for span in figure.spans), default=1.0)
    colours = {"forward": palette.sky, "backward": palette.orange}
    boxes: dict[tuple[str, bool], list[list[tuple[float, float]]]] = {}
    for span in figure.spans:
        corners = bar_corners(span.start, span.end, span.row, 0.42)
        boxes.setdefault((span.kind, span.chunk > 0), []).append(corners)
        if text_inches(span.text, 8) + 0.02 < (span.end - span.start) / end * 0.85 * _WIDTH:
            name_bar(axes, (span.start + span.end) / 2, span.row, span.text, 8)
    for (kind, later), bars in boxes.items():
        faces = colours[kind]
        alpha = 0.5 if later else 1.0
        axes.add_collection(PolyCollection(bars, facecolors=faces, edgecolors="white", lw=0.4, alpha=alpha))
    time_axis(axes, end)
    axes.set(xlim=(0, end), ylim=(rows - 0.4, -0.6))
    name_rows(axes, range(rows), figure.rows)
    keys = [Patch(color=colour, label=kind) for kind, colour in colours.items()]
    keys.append(Patch(fc="white", ec=palette.grey, label="bubble"))
    _legend(fig, keys, [str(key.get_label()) for key in keys])
    return fig


def _lines(figure: Lines) -> "Drawn":
    fig, axes = new_figure(width=_WIDTH, height=3.6)
    for number, (series, colour) in enumerate(zip(figure.series, cycle(_LINES), strict=False)):
        style = {"color": colour, "ls": _DASHES[number % len(_DASHES)], "label": series.label}
        if series.step:
            axes.step(series.x, series.y, where="post", **style)
        else:
            axes.plot(series.x, series.y, **style)
    if figure.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.10g}")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.10g}" if abs(y) < 1e7 else f"{y / 1e6:,.10g} M")
    lowest = min((min(series.y) for series in figure.series), default=0.0)
    if lowest >= 0 and all(max(series.y) > 2 * lowest for series in figure.series):
        axes.set_ylim(bottom=0)
    if "hour of the day" in figure.x_label:
        axes.set_xticks(range(0, 25, 3))
    if any(series.step for series in figure.series):  # which are counts
        axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel=figure.x_label, ylabel=figure.y_label)
    if figure.mark is not None:
        axes.axvline(figure.mark, color=palette.ink, ls=":", lw=1.5)
        _beside(axes, figure, figure.mark)
    if len(figure.series) > 1:
        _legend(fig, *axes.get_legend_handles_labels())
    return fig


def _legend(fig: "Drawn", handles: list, labels: list[str]) -> None:
    """Below the axes, in one row if it fits, else in as many columns as the longest label allows."""
    widths = [text_inches(label, 10) + 0.7 for label in labels]
    columns = len(labels) if sum(widths) < _WIDTH else max(1, int(_WIDTH / max(widths)))
    fig.legend(handles, labels, loc="outside lower center", ncols=columns)


def _beside(axes: "Axes", figure: Lines, mark: float) -> None:
    """The label of the marked x, on the side of its line that has more room, and away from the curves."""
    near = [min(zip(series.x, series.y, strict=True), key=lambda at: abs(at[0] - mark)) for series in figure.series]
    places = [axes.transAxes.inverted().transform(axes.transData.transform(point)) for point in near]
    left = places[0][0] > 0.6
    low = sum(height for _, height in places) > 0.5 * len(places)
    axes.annotate(
        fill(figure.mark_label or readable(mark, ""), 34),
        (mark, 0.04 if low else 0.96),
        xycoords=("data", "axes fraction"),
        xytext=(-5 if left else 5, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="bottom" if low else "top",
        fontsize=10,
        bbox={"fc": "white", "ec": "none", "alpha": 0.85, "pad": 1.5},
    )
