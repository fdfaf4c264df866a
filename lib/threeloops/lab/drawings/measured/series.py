"""Measured times by number of tokens, and a picture of them beside what a lab computes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from threeloops.figures import figure, palette
from threeloops.hardware.measured import MEASURED_BY, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Series", "draw_floors", "series"]

_COLOURS = (palette.vermillion, palette.blue, palette.green, palette.purple, palette.orange, palette.sky)
_LINE = 14
"""Points between two labels."""
_WIDE = 500
"""A longer axis of times has ticks at powers of ten only."""
_TOOLS = {"trtllm ": "TensorRT-LLM ", "vllm ": "vLLM "}


@dataclass(frozen=True)
class Series:
    """Seconds by number of tokens, in their order, and where they come from."""

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]
    source: str

    def at(self, tokens: int) -> float:
        """Return the seconds for so many tokens. Raises ValueError if they were not measured."""
        return self.seconds[self.tokens.index(tokens)]

    def since(self, least: int) -> "Series":
        """Return the times for at least so many tokens."""
        start = sum(tokens < least for tokens in self.tokens)
        return Series(self.tokens[start:], self.seconds[start:], self.source)


def series(table: Table, tokens: np.ndarray) -> Series:
    """Return the seconds of a table's rows in the order of their tokens. All rows come from one device and tool."""
    order = np.argsort(tokens)
    kernel = f" ({table['kernel_source'][0]})" if "kernel_source" in table.columns else ""
    tool = str(table["tool"][0])
    for short, name in _TOOLS.items():
        tool = tool.replace(short, name)
    source = f"{table['device'][0]}, {tool}{kernel}, {MEASURED_BY}"
    return Series(tuple(map(int, tokens[order])), tuple(map(float, table["seconds"][order])), source)


def draw_floors(
    times: Mapping[str, Series],
    floors: Mapping[str, Mapping[int, float]],
    title: str,
    across: str = "tokens",
    ticks: Sequence[int] = (128, 512, 2048, 8192, 32768),
) -> "Figure":
    """Draw measured times as dots, a colour per name, and floors in seconds by tokens as lines.

    A floor with the name of a series has its colour.
    """
    fig, axes = figure(width=8.6, height=4.0)
    colours = dict(zip(dict.fromkeys((*times, *floors)), _COLOURS, strict=False))
    lines = {name: dict(floor) for name, floor in floors.items()}
    dots = {name: dict(zip(one.tokens, one.seconds, strict=True)) for name, one in times.items()}
    smallest = min(second for points in (*lines.values(), *dots.values()) for second in points.values())
    unit, scale = ("ms", 1e3) if smallest >= 1e-3 else ("µs", 1e6)
    ends = {}
    for style, curves in (("-", lines), ("o", dots)):
        for name, points in curves.items():
            heights = [scale * second for second in points.values()]
            axes.plot(list(points), heights, style, color=colours[name], lw=1.6, ms=7)
            ends[name] = (max(points), scale * points[max(points)])
    axes.set(xscale="log", yscale="log", xlabel=across, ylabel=unit)
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    low, high = axes.get_ylim()
    wide = high > _WIDE * low
    axes.set_yticks(
        [
            value
            for power in range(-3, 8)
            for value in (10.0**power, *(() if wide else (2 * 10.0**power, 5 * 10.0**power)))
            if low <= value <= high
        ]
    )
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.minorticks_off()
    axes.set_title(title)
    fig.draw_without_rendering()  # so that the places in points are final
    _name_ends(axes, ends, colours, bold=times)
    return fig


def _name_ends(
    axes: "Axes", ends: Mapping[str, tuple[float, float]], colours: Mapping[str, str], bold: Collection[str]
) -> None:
    """Write each name beside the end of its curve, at least a line apart."""
    lowest = -np.inf
    for name, place in sorted(ends.items(), key=lambda end: end[1][1]):
        height = axes.transData.transform(place)[1] * 72 / axes.figure.dpi
        level = max(height, lowest + _LINE)
        weight = "bold" if name in bold else "normal"
        axes.annotate(
            name,
            place,
            (8, level - height),
            textcoords="offset points",
            color=colours[name],
            va="center",
            weight=weight,
        )
        lowest = level
