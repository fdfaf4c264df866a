"""A trace as a picture: a row for each worker, a bar for each sample."""

from typing import TYPE_CHECKING

from threeloops.palette import palette
from threeloops.simulation.pipeline import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "request": palette.sky,
    "fetch": palette.sky,
    "transfer": palette.blue,
    "decode": palette.orange,
    "copy": palette.purple,
}
_NUMBERS_UP_TO = 24


def draw(trace: Trace, axes: "Axes", until: float | None = None, unit: float = 1e-3, unit_name: str = "ms") -> None:
    """Draw the trace from its first start, up to `until` seconds, on matplotlib `axes`; the consumer is green.

    A stage has its colour in every picture. Neighbours in a row are told apart by their shade.
    """
    first = min(each.start for each in trace.intervals)
    rows = [(name, worker) for name, workers in trace.stages for worker in range(workers)]
    consumer = trace.stages[-1][0]
    colours = {name: COLOURS.get(name, palette.blue) for name, _ in trace.stages} | {consumer: palette.green}
    place = {row: i for i, row in enumerate(rows)}
    shown = sorted((i for i in trace.intervals if until is None or i.start - first < until), key=lambda i: i.start)
    samples = len({each.sample for each in shown})
    end = (until if until is not None else trace.seconds) / unit
    drawn = dict.fromkeys(place, 0)
    for each in shown:
        start, width = (each.start - first) / unit, (each.end - each.start) / unit
        row, colour = place[each.stage, each.worker], colours[each.stage]
        shade = (1.0, 0.72)[drawn[each.stage, each.worker] % 2]
        drawn[each.stage, each.worker] += 1
        edge = "white" if width > 0.006 * end else colour  # a white edge would leave nothing of a thin bar
        axes.barh(row, width, left=start, height=0.84, color=colour, ec=edge, alpha=shade, lw=0.8)
        visible = min(start + width, end) - start
        if samples <= _NUMBERS_UP_TO and visible > 0.018 * end:
            ink = "white" if colour == palette.blue else palette.ink
            axes.text(start + visible / 2, row, str(each.sample), ha="center", va="center", fontsize=9, color=ink)
    labels = [
        name if workers == 1 else f"{name} {worker + 1}" for name, workers in trace.stages for worker in range(workers)
    ]
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, end)
    axes.set_xlabel(unit_name)
    axes.grid(axis="y", visible=False)
