"""Figures in the course's look: one set of sizes and colours, for the library's pictures and for those of labs.

Colour-blind readers can tell the colours apart. They are those of Okabe and Ito, "Color Universal Design" (2008).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from threeloops.units import time_unit

__all__ = [
    "GRID", "ON_DARK", "ON_LIGHT", "bar_corners", "colour_labels", "figure", "fitting", "legend_above",
    "legend_inside", "name_bar", "name_rows", "palette", "text_inches", "time_axis",
]  # fmt: skip


class _Palette(NamedTuple):
    blue: str = "#0072b2"
    orange: str = "#e69f00"
    green: str = "#009e73"
    vermillion: str = "#d55e00"
    purple: str = "#cc79a7"
    sky: str = "#56b4e9"
    yellow: str = "#f0e442"
    grey: str = "#7f7f7f"
    ink: str = "#222222"


palette = _Palette()
GRID = "#dddddd"
ON_DARK = "#fdfdfd"
ON_LIGHT = "#111111"
"""Text on bars of the palette, whose colours are the same on a light page and on a dark one; white and ink are not."""
_MARGIN = 0.05
"""Inches that stay free beside the name of a bar."""
_SETTINGS = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "figure.dpi": 96,
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelcolor": palette.ink,
    "axes.edgecolor": palette.grey,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "lines.linewidth": 2.0,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "text.color": palette.ink,
    "xtick.color": palette.ink,
    "ytick.color": palette.ink,
}


def figure(rows: int = 1, columns: int = 1, *, width: float = 8.0, height: float = 3.8, **subplots):
    """`(Figure, axes)` in the course's look, in inches; `subplots` goes to `Figure.subplots`.

    Also makes this look matplotlib's default in the process. The figure is unknown to pyplot: nothing shows it twice,
    nothing has to close it.
    """
    import matplotlib
    from cycler import cycler
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = [c for c in palette if c not in (palette.yellow, palette.grey, palette.ink)]
    matplotlib.rcParams.update(_SETTINGS | {"axes.prop_cycle": cycler(color=colours)})
    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made, made.subplots(rows, columns, **subplots)


def fitting(text: str, inches: float, size: float) -> str:
    """Return the part of a name that fits in a bar: all, its last number ("7" of "layer 7"), or ""."""
    shown = (text, *re.findall(r"\d+", text)[-1:], "")
    return next(label for label in shown if text_inches(label, size) + _MARGIN < inches or not label)


def text_inches(text: str, size: float) -> float:
    """About how wide a text is. A page shows it in a font of its own: 0.6 em a character is enough for most."""
    return len(text) * 0.6 * size / 72


def bar_corners(start: float, end: float, middle: float, half: float) -> list[tuple[float, float]]:
    """Return the corners of a bar for a `PolyCollection`, which draws many of them at once."""
    return [(start, middle - half), (start, middle + half), (end, middle + half), (end, middle - half)]


def colour_labels(fig) -> None:
    """Give each label on an area the one of `ON_DARK` and `ON_LIGHT` that stands out more.

    Areas have the same colour on a light page and on a dark one, but the page's own ink has not. Areas with labels that
    let the page shine through become solid, in the colour that they have on white. Labels in a colour of the palette
    keep it, and so do those on a faint tint.
    """
    from matplotlib.colors import to_hex

    inks = {palette.ink, ON_DARK, ON_LIGHT, "#000000", "#ffffff"}
    for axes in fig.axes:
        labels = [label for label in axes.texts if label.get_visible() and to_hex(label.get_color()) in inks]
        labels = [label for label in labels if label.get_text().strip() and label.get_bbox_patch() is None]
        axes.get_xlim()  # without it, places are those before the axes took in all of their data
        areas = _areas(axes) if labels else []
        below = [(label, area) for label in labels if (area := _below(label, areas)) is not None]
        through = {area.colour for _, area in below if area.colour[3] < 1}
        for area in areas:
            if area.colour in through:
                area.make_solid()
        for label, area in below:
            if to_hex(area.colour) not in _OF_THE_PAGE:
                label.set_color(max(ON_DARK, ON_LIGHT, key=lambda ink: _contrast(ink, to_hex(area.colour))))


_OF_THE_PAGE = ("#ffffff", palette.ink, "#000000")
"""Colours of areas that follow the page."""
_TINT = 0.4
"""The opacity below which the page's ink can be read on every colour of the palette."""


@dataclass
class _Area:
    """A patch of some axes, or the polygon of this number in a collection of them."""

    artist: Any
    number: int | None
    colour: tuple[float, ...]
    """Red, green, blue and opacity, from 0 to 1."""
    path: Any = None
    """The polygon, in pixels."""

    def holds(self, place: tuple[float, float]) -> bool:
        return (self.artist if self.path is None else self.path).contains_point(place)

    def make_solid(self) -> None:
        *parts, opacity = self.colour
        self.colour = (*(part * opacity + 1 - opacity for part in parts), 1.0)
        if self.number is None:
            self.artist.set_alpha(None)
            self.artist.set_facecolor(self.colour)
        else:
            colours = self.artist.get_facecolor().copy()
            colours[self.number % len(colours)] = self.colour
            self.artist.set_alpha(None)
            self.artist.set_facecolor(colours)


def _areas(axes) -> list[_Area]:
    """Return the areas of the axes that are more than a tint, from the lowest to the highest."""
    from matplotlib.collections import PolyCollection

    areas = [_Area(patch, None, tuple(patch.get_facecolor())) for patch in axes.patches if patch.get_visible()]
    for polygons in axes.collections:
        colours = polygons.get_facecolor()
        if isinstance(polygons, PolyCollection) and polygons.get_visible() and len(colours):
            transform = polygons.get_transform()
            areas += [
                _Area(polygons, number, tuple(colours[number % len(colours)]), path.transformed(transform))
                for number, path in enumerate(polygons.get_paths())
            ]
    return sorted((area for area in areas if area.colour[3] >= _TINT), key=lambda area: area.artist.get_zorder())


def _below(label, areas: list[_Area]) -> _Area | None:
    """Return the highest area that the middle of a label lies on."""
    box = label.get_window_extent()
    middle = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
    return next((area for area in reversed(areas) if area.holds(middle)), None)


def _contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, as WCAG 2.2 defines it."""
    low, high = sorted(_luminance(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    from matplotlib.colors import to_rgb

    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


def name_rows(axes, places, names, **font) -> None:
    """Name the rows of a Gantt chart, and leave out their ticks and grid lines."""
    axes.set_yticks(places, names, **font)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)


def time_axis(axes, seconds: float, start: float = 0.0) -> str:
    """Label an x axis of so many seconds in µs, ms or s from `start` on; returns the unit."""
    scale, unit = time_unit(seconds)
    axes.xaxis.set_major_formatter(lambda x, _: f"{round((x - start) * scale, 9):,.10g}")
    axes.set_xlabel(unit)
    return unit


def legend_above(axes, colours: Mapping[str, str], **options) -> None:
    """Put the names of the colours into one line above the axes, to the right."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=name) for name, colour in colours.items()]
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderpad": 0.2, "handlelength": 1.2}
    axes.legend(handles=handles, ncols=min(len(handles), 6), **place, **options)


def legend_inside(axes, colours: Mapping[str, str], **options) -> None:
    """Put the names of the colours into one line at the top of the axes, below a title."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=name) for name, colour in colours.items()]
    place = {"loc": "upper left", "borderpad": 0.2, "handlelength": 1.2}
    axes.legend(handles=handles, ncols=len(handles), **place, **options)


def name_bar(axes, x: float, y: float, text: str, size: float = 9, **options) -> None:
    """Write a name in the middle of a bar of the palette."""
    axes.text(x, y, text, ha="center", va="center_baseline", fontsize=size, **{"color": ON_LIGHT, **options})
