"""The picture: what each kernel requests, what of it is unique, what reaches memory, and what it must cost."""

from collections.abc import Mapping, Sequence
from math import ceil, log2
from typing import TYPE_CHECKING, Any

from threeloops.inner.bench.meter.report import by_kernel
from threeloops.inner.bench.meter.traffic import LaunchTraffic, together
from threeloops.inner.costs import Work
from threeloops.inner.readable import readable_bytes
from threeloops.palette import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"requested": palette.sky, "unique": palette.blue, "DRAM, modelled": palette.green}
COST = palette.vermillion


def draw(launches: Sequence[LaunchTraffic], ax: "Axes | None", cost: Work | Mapping[str, Work] | None) -> "Axes":
    """See `Metered.plot`."""
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(7.5, 1.6 + 0.8 * max(len(by_kernel(launches)), 1)), layout="constrained").subplots()
    kernels = {name: together(each) for name, each in by_kernel(launches).items()}
    series: dict[str, list[int | None]] = {
        "requested": [each.requested_bytes for each in kernels.values()],
        "unique": [each.unique_bytes for each in kernels.values()],
        "DRAM, modelled": [each.dram_bytes for each in kernels.values()],
    }
    shown = {name: bars for name, bars in series.items() if None not in bars}
    height = 0.8 / len(shown)
    costs = [] if cost is None else [cost] if isinstance(cost, Work) else list(cost.values())
    longest = max([*(value or 0 for bars in shown.values() for value in bars), *(each.bytes for each in costs), 1])
    handles: list = []
    for place, (name, bars) in enumerate(shown.items()):
        rows = [row + (place - (len(shown) - 1) / 2) * height for row in range(len(kernels))]
        widths = [value or 0 for value in bars]
        drawn = ax.barh(rows, widths, height * 0.92, color=COLOURS[name], label=name)
        handles.append(drawn)
        ax.bar_label(drawn, [readable_bytes(width) for width in widths], padding=3, fontsize=9)
    style: dict[str, Any] = {"color": COST, "linestyle": "--", "linewidth": 1.5}
    if isinstance(cost, Work):
        handles.append(ax.axvline(cost.bytes, label=f"cost: {readable_bytes(cost.bytes)}", **style))
    elif cost:
        rows = [row for row, name in enumerate(kernels) if name in cost]
        places = [cost[name].bytes for name in kernels if name in cost]
        ends = ([row - 0.45 for row in rows], [row + 0.45 for row in rows])
        handles.append(ax.vlines(places, *ends, label="cost", **style))
    ax.set_yticks(range(len(kernels)), list(kernels))
    ax.invert_yaxis()
    ax.set_xlim(0, longest * 1.18)
    ax.set_xticks([tick * tick_step(longest) for tick in range(8) if tick * tick_step(longest) < longest * 1.18])
    ax.xaxis.set_major_formatter(lambda value, _: readable_bytes(value))
    ax.set_xlabel("bytes")
    ax.grid(axis="x", color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=9)
    return ax


def tick_step(longest: float) -> int:
    """A power of two that divides the axis into 4 to 7 parts."""
    return 2 ** max(ceil(log2(longest * 1.18 / 7)), 0)
