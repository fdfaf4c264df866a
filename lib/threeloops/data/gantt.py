"""A trace as a picture: a row for each worker, a bar for each sample."""

from typing import TYPE_CHECKING

from threeloops.data.pipeline import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#56b4e9", "#0072b2", "#e69f00", "#cc79a7", "#009e73")
CONSUMER = "#009e73"
_NUMBERS_UP_TO = 24


def draw(trace: Trace, axes: "Axes", until: float | None = None, unit: float = 1e-3, unit_name: str = "ms") -> None:
    """Draw the trace from its first start, up to `until` seconds, on matplotlib `axes`; the consumer is green."""
    first = min(each.start for each in trace.intervals)
    rows = [(name, worker) for name, workers in trace.stages for worker in range(workers)]
    consumer = trace.stages[-1][0]
    colours = {name: COLOURS[i % 4] for i, (name, _) in enumerate(trace.stages)} | {consumer: CONSUMER}
    place = {row: i for i, row in enumerate(rows)}
    shown = [each for each in trace.intervals if until is None or each.start - first < until]
    samples = len({each.sample for each in shown})
    end = until if until is not None else trace.seconds
    for each in shown:
        start, width = (each.start - first) / unit, (each.end - each.start) / unit
        row = place[each.stage, each.worker]
        shade = 1.0 if each.sample % 2 == 0 else 0.72
        axes.barh(
            row, width, left=start, height=0.84, color=colours[each.stage], ec=colours[each.stage], alpha=shade, lw=0.6
        )
        if samples <= _NUMBERS_UP_TO and width > 0.022 * end / unit:
            axes.text(start + width / 2, row, str(each.sample), ha="center", va="center", fontsize=8, color="white")
    labels = [
        name if workers == 1 else f"{name} {worker + 1}" for name, workers in trace.stages for worker in range(workers)
    ]
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, end / unit)
    axes.set_xlabel(unit_name)
    axes.grid(axis="y", visible=False)
