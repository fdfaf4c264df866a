"""A trace as a picture: a row for each worker, a bar for each sample."""

from typing import TYPE_CHECKING

from threeloops.figures import ON_DARK, ON_LIGHT, name_bar, name_rows, palette
from threeloops.simulation.pipeline import Trace

__all__ = ["draw"]

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "request": palette.sky,
    "fetch": palette.sky,
    "transfer": palette.blue,
    "decode": palette.orange,
    "copy": palette.purple,
}
_NUMBERS_UP_TO = 24


def draw(trace: Trace, axes: "Axes", until: float | None = None) -> None:
    """Draw the first `until` seconds of the trace, in ms.

    A stage has the same colour in every picture; the consumer is green. Neighbouring bars in a row alternate in shade.
    """
    first = min(interval.start for interval in trace.intervals)
    rows = [(name, worker) for name, workers in trace.stages for worker in range(workers)]
    colours = {name: _COLOURS.get(name, palette.blue) for name, _ in trace.stages} | {trace.consumer: palette.green}
    shown = sorted((i for i in trace.intervals if until is None or i.start - first < until), key=lambda i: i.start)
    numbered = len({interval.sample for interval in shown}) <= _NUMBERS_UP_TO
    end = 1e3 * (until if until is not None else trace.seconds)
    drawn = [0] * len(rows)
    for interval in shown:
        start = 1e3 * (interval.start - first)
        width = 1e3 * interval.seconds
        row = rows.index((interval.stage, interval.worker))
        colour = colours[interval.stage]
        edge = "white" if width > 0.006 * end else colour  # a white edge would hide a thin bar
        shade = (colour, _lighter(colour))[drawn[row] % 2]
        drawn[row] += 1
        axes.barh(row, width, left=start, height=0.84, color=shade, ec=edge, lw=0.8)
        visible = min(start + width, end) - start
        if numbered and visible > 0.018 * end:
            ink = ON_DARK if colour == palette.blue else ON_LIGHT
            name_bar(axes, start + visible / 2, row, str(interval.sample), color=ink)
    workers_of = dict(trace.stages)
    name_rows(axes, range(len(rows)), [n if workers_of[n] == 1 else f"{n} {worker + 1}" for n, worker in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, end)
    axes.set_xlabel("ms")


def _lighter(colour: str) -> str:
    """Mix a colour with white, not with the page, so that the number on a bar can be read on a dark page too."""
    channels = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(0.72 * channel + 0.28 * 255):02x}" for channel in channels)
