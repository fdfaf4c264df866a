"""The roofline: how fast can an operation be on a device, and what stops it?

A device computes at most `peak_flops` and moves at most `bandwidth` bytes per second. An operation that does
`intensity` FLOPs per byte therefore cannot exceed the lower of two lines, the sloping intensity · bandwidth and the
flat peak, which meet at the ridge point. Source: Williams, Waterman and Patterson, "Roofline: An Insightful Visual
Performance Model for Multicore Architectures", CACM 52(4), 2009.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Literal

import numpy as np

from threeloops.figures import palette
from threeloops.hardware.accelerators import Accelerator, dtype_name
from threeloops.inner.costs import Work, attention, elementwise, layernorm, matmul, softmax

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Bound", "Roofline", "Work", "attention", "classify", "elementwise", "layernorm", "matmul", "place",
    "softmax",
]  # fmt: skip

Bound = Literal["compute", "memory", "overhead"]

_ROOF = palette.ink
_RIDGE = palette.vermillion
_POINT = palette.green
_LEADER = {"arrowstyle": "-", "color": "0.6", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 4}
_LABEL_DISTANCES = (11, 24, 40, 60, 85, 115)
_LABEL_TURNS = [math.radians(degrees) for degrees in (150, 120, 90, 180, -30, -60, 0, -90, 30, 60, 210, 240)]


def classify(
    work: Work,
    accelerator: Accelerator,
    dtype: object,
    measured_seconds: float | None = None,
    launch_seconds: float = 0.0,
) -> Bound:
    """Return what limits an operation that runs repeatedly: "compute", "memory" or "overhead".

    The device is busy for `measured_seconds`, or for the time floor if that was not measured. Meanwhile the host needs
    `launch_seconds` to issue the next operation. If that takes longer, the device waits for the host and no faster
    kernel would help, so the limit is "overhead". Otherwise it is "compute" if flops / peak ≥ bytes / bandwidth, else
    "memory".
    """
    roofline = Roofline(accelerator, dtype)
    busy = roofline.time_floor(work) if measured_seconds is None else measured_seconds
    for name, seconds in (("measured_seconds", busy), ("launch_seconds", launch_seconds)):
        if not (0 <= seconds < math.inf):
            raise ValueError(f"{name} = {seconds} s: expected a finite duration, at least 0")
    return "overhead" if launch_seconds > busy else roofline.bound(work)


@dataclass(frozen=True)
class Roofline:
    """The roofline of `accelerator` for arithmetic in `dtype`. Raises LookupError if it has no rate for `dtype`."""

    accelerator: Accelerator
    dtype: object = "bf16"

    def __post_init__(self) -> None:
        for name, unit in (("peak_flops", "FLOP/s"), ("bandwidth", "bytes/s")):
            if not (0 < (rate := getattr(self, name)) < math.inf):
                raise ValueError(f"{name} = {rate} {unit}: expected a positive, finite rate")

    @property
    def peak_flops(self) -> float:
        """FLOP/s."""
        return self.accelerator.rate(self.dtype)

    @property
    def bandwidth(self) -> float:
        """Bytes/s."""
        return self.accelerator.memory_bandwidth

    @property
    def ridge_point(self) -> float:
        """FLOP/byte above which the peak, not the memory, is the limit."""
        return self.peak_flops / self.bandwidth

    def attainable(self, work: Work | float) -> float:
        """Return the most FLOP/s, for some work or for an intensity in FLOP/byte."""
        intensity = work.intensity if isinstance(work, Work) else work
        if not intensity >= 0:
            raise ValueError(f"intensity = {intensity} FLOP/byte: expected at least 0")
        return min(self.peak_flops, intensity * self.bandwidth)

    def time_floor(self, work: Work) -> float:
        """Return the fewest seconds for `work`: arithmetic and transfers overlap perfectly, so the longer one
        decides."""
        return max(work.flops / self.peak_flops, work.bytes / self.bandwidth)

    def bound(self, work: Work) -> Literal["compute", "memory"]:
        """Return which roof limits `work` ("compute" at the ridge point)."""
        return "compute" if work.flops / self.peak_flops >= work.bytes / self.bandwidth else "memory"

    def plot(self, ax: "Axes | None" = None, points: Mapping[str, Work | tuple[Work, float]] | None = None) -> "Axes":
        """Draw the two roofs on log-log axes, mark the ridge point, and label `points`.

        A point is Work, drawn hollow on the roof above it, or (Work, measured seconds), drawn solid at the rate that
        was reached. Raises ValueError for Work without FLOPs or bytes, which has no place on logarithmic axes.
        """
        if ax is None:
            from matplotlib.figure import Figure

            ax = Figure(figsize=(7.5, 4.8), layout="constrained").subplots()
        places = {label: place(self, label, point) for label, point in (points or {}).items()}
        _set_axes(self, ax, [(x, y) for x, y, _ in places.values()])
        (left, right), (bottom, _) = ax.get_xlim(), ax.get_ylim()
        ridge = self.ridge_point
        peak = self.peak_flops
        corners = [(left, self.attainable(left)), (ridge, peak), (right, peak)]
        across = [x for x, _ in corners]
        up = [y for _, y in corners]
        ax.plot(across, up, color=_ROOF, linewidth=2, zorder=2)
        ax.fill_between(across, up, bottom, color=_ROOF, alpha=0.04, linewidth=0)
        ax.plot([ridge, ridge], [bottom, peak], color=_RIDGE, linewidth=1, linestyle=":", zorder=1)
        for x, y, measured in places.values():
            ax.plot(x, y, "o", color=_POINT, markerfacecolor=_POINT if measured else "white", markersize=7, zorder=3)
        if len({measured for _, _, measured in places.values()}) == 2:
            for name, face in (("measured", _POINT), ("at most", "white")):
                ax.plot([], [], "o", color=_POINT, markerfacecolor=face, markersize=7, label=name)
            ax.legend(loc="center right", frameon=False, fontsize=9)
        ridge_label = ax.annotate(
            f"ridge {ridge:.3g} FLOP/byte",
            (ridge, bottom),
            (5, 5),
            textcoords="offset points",
            color=_RIDGE,
            fontsize=9,
        )
        # Labels are placed in pixels, so the layout has to be fixed first.
        ax.figure.canvas.figure.draw_without_rendering()
        taken = [artist.get_window_extent() for artist in (ridge_label, ax.get_legend()) if artist is not None]
        dots = list(ax.transData.transform([(x, y) for x, y, _ in places.values()])) if places else []
        roofs = [*_along(ax, corners[0], corners[1]), *_along(ax, corners[1], corners[2])]
        for label, (x, y, measured) in places.items():
            # The point on the roof and the measured one often share an intensity: label one above and the other below.
            first_turn = math.pi if measured else 0.0
            taken.append(_label_clear_of(ax, label, (x, y), taken, dots, roofs, first_turn))
        return ax


def place(roofline: Roofline, label: str, point: Work | tuple[Work, float]) -> tuple[float, float, bool]:
    """Return the intensity, the FLOP/s, and whether the latter was measured."""
    work, seconds = point if isinstance(point, tuple) else (point, None)
    if not (work.flops > 0 and work.bytes > 0):
        raise ValueError(f"{label}: {work} has no place on logarithmic axes; leave it out of the plot")
    if seconds is None:
        return work.intensity, roofline.attainable(work), False
    if not (0 < seconds < math.inf):
        raise ValueError(f"{label}: measured seconds = {seconds}: expected a positive duration")
    return work.intensity, work.flops / seconds, True


def _set_axes(roofline: Roofline, ax: "Axes", dots: list[tuple[float, float]]) -> None:
    """Set logarithmic axes that hold the ridge, a piece of both roofs, and every point."""
    xs = [x for x, _ in dots] + [roofline.ridge_point / 100, roofline.ridge_point * 4]
    left = min(xs) / 3
    right = max(xs) * 8
    ys = [y for _, y in dots] + [roofline.attainable(left), roofline.peak_flops]
    ax.set(xscale="log", yscale="log", xlim=(left, right), ylim=(min(ys) / 2, max(ys) * 3))
    ax.set_xlabel("arithmetic intensity (FLOP per byte)")
    ax.set_ylabel("performance (FLOP/s)")
    ax.set_title(f"{roofline.accelerator.name}, {dtype_name(roofline.dtype)}", loc="left", fontsize=10)
    rates = f"{_engineering(roofline.peak_flops)}FLOP/s, {_engineering(roofline.bandwidth)}B/s"
    ax.set_title(rates, loc="right", fontsize=9, color=_ROOF)
    ax.grid(which="major", color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _along(ax: "Axes", start: tuple[float, float], end: tuple[float, float]) -> np.ndarray:
    """Return pixel positions on the straight line between two data points."""
    first, last = ax.transData.transform([start, end])
    return np.linspace(first, last, 61)


def _label_clear_of(
    ax: "Axes", text: str, at: tuple[float, float], taken: list, dots: list, roofs: list, first_turn: float
):
    """Place a label so that it covers no label, point, roof or edge, as near to its point as possible.

    `taken` are boxes, `dots` and `roofs` positions, in pixels. Positions around the point are tried from near to far,
    starting at an angle of `first_turn` radians. Covering a piece of roof costs as much as being 6 points farther away.
    Other collisions are avoided at any distance. A label that had to move gets a thin line to its point. Returns the
    box that the label covers.
    """
    frame = ax.get_window_extent()
    label = ax.annotate(text, at, xytext=(0, 0), textcoords="offset points", fontsize=9, color="0.15", va="center")
    best: tuple = (math.inf, 0.0, 0.0, "left")
    for distance, turn in product(_LABEL_DISTANCES, _LABEL_TURNS):
        if distance >= best[0]:
            break
        dx = distance * math.cos(turn + first_turn)
        dy = distance * math.sin(turn + first_turn)
        align = "left" if dx > 1 else "right" if dx < -1 else "center"
        label.set(position=(dx, dy), ha=align)
        box = label.get_window_extent()
        inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
        covered = sum(box.overlaps(other) for other in taken) + sum(box.padded(4).contains(*dot) for dot in dots)
        crossed = sum(box.padded(2).contains(*piece) for piece in roofs)
        cost = 1000 * (covered + (not inside)) + 6 * crossed + distance
        best = min(best, (cost, dx, dy, align), key=lambda candidate: candidate[0])
    _, dx, dy, align = best
    label.set(position=(dx, dy), ha=align)
    if math.hypot(dx, dy) > 20:
        ax.annotate("", at, xytext=(dx, dy), textcoords="offset points", arrowprops=_LEADER)
    return label.get_window_extent()


def _engineering(rate: float) -> str:
    """Format a number: 989.4e12 → "989 T", ready for a unit."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if rate >= size:
            return f"{rate / size:.3g} {prefix}"
    return f"{rate:.3g} "
