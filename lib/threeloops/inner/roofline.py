"""The roofline: how fast can an operation be on a device, and what stops it?

A device computes at most `peak_flops` and moves at most `bandwidth` bytes a second. An operation that does `intensity`
FLOPs for each byte it moves therefore cannot exceed the lower of two lines: the sloping one, intensity · bandwidth, and
the flat one, the peak. They meet at the ridge point. Source: Williams, Waterman and Patterson, "Roofline: An Insightful
Visual Performance Model for Multicore Architectures", CACM 52(4), 2009.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from threeloops.hardware.accelerators import Accelerator
from threeloops.inner.costs import Work, attention, elementwise, embedding, layernorm, matmul, saxpy, softmax

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Roofline",
    "Work",
    "attainable",
    "attention",
    "classify",
    "elementwise",
    "embedding",
    "layernorm",
    "matmul",
    "ridge_point",
    "saxpy",
    "softmax",
    "time_floor",
]

Bound = Literal["compute", "memory", "overhead"]


def attainable(intensity: float, peak_flops: float, bandwidth: float) -> float:
    """The most FLOP/s at `intensity` FLOP/byte, with `peak_flops` in FLOP/s and `bandwidth` in bytes/s."""
    require_rates(peak_flops, bandwidth)
    if not intensity >= 0:
        raise ValueError(f"intensity = {intensity} FLOP/byte: expected at least 0")
    return min(peak_flops, intensity * bandwidth)


def ridge_point(peak_flops: float, bandwidth: float) -> float:
    """FLOP/byte from which on the peak, not the memory, is the limit."""
    require_rates(peak_flops, bandwidth)
    return peak_flops / bandwidth


def time_floor(work: Work, peak_flops: float, bandwidth: float) -> float:
    """Seconds below which `work` cannot be done: arithmetic and transfers overlap perfectly, the longer one decides."""
    require_rates(peak_flops, bandwidth)
    return max(work.flops / peak_flops, work.bytes / bandwidth)


def classify(
    work: Work,
    accelerator: Accelerator,
    dtype: object,
    measured_seconds: float | None = None,
    launch_seconds: float = 0.0,
) -> Bound:
    """What limits an operation that is run again and again: "compute", "memory" or "overhead".

    The device is busy for `measured_seconds`, or, if that was not measured, for the time floor. The host needs
    `launch_seconds` to issue the operation, and issues the next one meanwhile.

    - "overhead" if launch_seconds > busy: the device waits for the host, and no faster kernel would help;
    - otherwise "compute" if flops / peak ≥ bytes / bandwidth, else "memory".

    A measured time decides only between host and device. How near it comes to the roof is `Roofline.efficiency`.
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
        require_rates(self.peak_flops, self.bandwidth)

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
        """FLOP/byte."""
        return ridge_point(self.peak_flops, self.bandwidth)

    def attainable(self, work: Work | float) -> float:
        """FLOP/s at most, for some work or for an intensity."""
        intensity = work.intensity if isinstance(work, Work) else work
        return attainable(intensity, self.peak_flops, self.bandwidth)

    def time_floor(self, work: Work) -> float:
        """Seconds."""
        return time_floor(work, self.peak_flops, self.bandwidth)

    def bound(self, work: Work) -> Literal["compute", "memory"]:
        """Which roof is above `work`. At the ridge point itself: "compute"."""
        return "compute" if work.flops / self.peak_flops >= work.bytes / self.bandwidth else "memory"

    def efficiency(self, work: Work, measured_seconds: float) -> float:
        """Time floor over measured time: 1 is the roof. Above 1, data came from a cache or the cost counts too much."""
        if not (0 < measured_seconds < math.inf):
            raise ValueError(f"measured_seconds = {measured_seconds} s: expected a positive duration")
        return self.time_floor(work) / measured_seconds

    def plot(self, ax: "Axes | None" = None, points: Mapping[str, Work | tuple[Work, float]] | None = None) -> "Axes":
        """Draw the two roofs on log-log axes, mark the ridge point, and label `points`.

        A point is Work, drawn hollow on the roof above it, or (Work, measured seconds), drawn solid where it came to.
        Work without FLOPs has no place on a logarithmic axis and raises ValueError.
        """
        from threeloops.inner.roofline_plot import draw

        return draw(self, ax, points or {})


def require_rates(peak_flops: float, bandwidth: float) -> None:
    for name, rate, unit in (("peak_flops", peak_flops, "FLOP/s"), ("bandwidth", bandwidth, "bytes/s")):
        if not (0 < rate < math.inf):
            raise ValueError(f"{name} = {rate} {unit}: expected a positive, finite rate")
