"""Measured times by size, and a picture of them beside what a lab computes."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from threeloops.figures import figure, palette
from threeloops.hardware.measured import MEASURED_BY, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Series", "draw_floors", "series", "source"]

_COLOURS = (palette.vermillion, palette.blue, palette.green, palette.purple, palette.orange, palette.sky)
_LINE = 14
"""Points between two labels."""
_MILLISECOND = 1e-3
_WIDE = 500
"""A longer axis of times has ticks at powers of ten only."""
_TOOLS = {"trtllm": "TensorRT-LLM", "vllm": "vLLM", "sglang": "SGLang", "nccl": "NCCL"}
"""The makers' spelling of each tool of the tables."""


@dataclass(frozen=True)
class Series:
    """Seconds by size (tokens, requests or bytes), in order of the sizes, and where they come from."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    source: str

    @classmethod
    def of(cls, sizes: np.ndarray, seconds: np.ndarray, source: str) -> "Series":
        """Return the series of these points, which may be in any order."""
        order = np.argsort(sizes)
        return cls(tuple(map(int, sizes[order])), tuple(map(float, seconds[order])), source)

    def at(self, size: int) -> float:
        """Return the seconds for this size. Raises ValueError if it was not measured."""
        return self.seconds[self.sizes.index(size)]

    def since(self, least: int) -> "Series":
        """Return the times for this size and larger ones."""
        start = sum(size < least for size in self.sizes)
        return Series(self.sizes[start:], self.seconds[start:], self.source)


def source(device: str, tool: str) -> str:
    """Return the device, the tool in its makers' spelling, and who measured."""
    for short, name in _TOOLS.items():
        tool = re.sub(rf"^{short}[ /]", f"{name} ", tool)
    return f"{device}, {tool}, {MEASURED_BY}"


def series(table: Table, sizes: np.ndarray) -> Series:
    """Return the seconds of a table's rows by their sizes. All rows come from one device and tool."""
    kernel = f" ({table['kernel_source'][0]})" if "kernel_source" in table.columns else ""
    return Series.of(sizes, table["seconds"], source(table["device"][0], f"{table['tool'][0]}{kernel}"))


def draw_floors(
    times: Mapping[str, Series],
    floors: Mapping[str, Mapping[int, float]],
    title: str,
    across: str = "tokens",
    ticks: Sequence[int] = (128, 512, 2048, 8192, 32768),
    named_at_start: Collection[str] = (),
) -> "Figure":
    """Draw measured times as dots, a colour per name, and floors in seconds by size as lines.

    A floor with the name of a series has its colour. A name stands beside the last point of its curve, or above the
    first one if it is among `named_at_start`.
    """
    fig, axes = figure(width=8.6, height=4.0)
    colours = dict(zip(dict.fromkeys((*times, *floors)), _COLOURS, strict=False))
    lines = {name: dict(floor) for name, floor in floors.items()}
    dots = {name: dict(zip(one.sizes, one.seconds, strict=True)) for name, one in times.items()}
    smallest = min(second for points in (*lines.values(), *dots.values()) for second in points.values())
    unit, scale = ("ms", 1e3) if smallest >= _MILLISECOND / 2 else ("µs", 1e6)
    ends = {}
    for style, curves in (("-", lines), ("o", dots)):
        for name, points in curves.items():
            heights = [scale * second for second in points.values()]
            axes.plot(list(points), heights, style, color=colours[name], lw=1.6, ms=7)
            end = min(points) if name in named_at_start else max(points)
            ends[name] = (end, scale * points[end])
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
    for name in named_at_start:
        place = ends.pop(name)
        weight = "bold" if name in times else "normal"
        axes.annotate(name, place, (-4, 24), textcoords="offset points", color=colours[name], weight=weight)
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
