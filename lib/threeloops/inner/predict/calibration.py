"""What a device was measured to do, in the two numbers of a streaming kernel's time: time = start + bytes / bandwidth.

Fitted to one simple kernel at several sizes, they predict others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from threeloops.hardware.accelerators import Accelerator
from threeloops.inner.costs import Work
from threeloops.inner.meter.traffic import Traffic


@dataclass(frozen=True)
class Calibration:
    """Bytes/s from memory, seconds that a launch takes before and after its data flow, and the part of the L2 in which
    a second pass finds what the first one read.

    `residual`: the largest relative error of the fit, by which predictions are widened. `l2_bandwidth` (bytes/s) and
    `matrix_rate` (FLOP/s) are used where they were measured.
    """

    bandwidth: float
    start_seconds: float = 0.0
    effective_l2_bytes: float | None = None
    residual: float = 0.0
    l2_bandwidth: float | None = None
    matrix_rate: float | None = None

    def __post_init__(self) -> None:
        for name in ("bandwidth", "l2_bandwidth", "matrix_rate"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} = {value}: expected a positive rate")
        if not (self.start_seconds >= 0 and 0 <= self.residual < 1):
            raise ValueError(
                f"start_seconds = {self.start_seconds}, residual = {self.residual}: expected at least 0 s, and 0 to 1"
            )


def effective_l2(accelerator: Accelerator) -> float | None:
    """Half the L2. An A100 or H100 has two partitions, each of which caches what its own half of the multiprocessors
    reads (NVIDIA A100 whitepaper, 2020), so data that both halves read takes its place twice. None: size unknown."""
    return accelerator.caches.l2_bytes / 2 if accelerator.caches.l2_bytes else None


def calibrate(
    measurements: Sequence[tuple[Work | Traffic | float, float]], accelerator: Accelerator | None = None
) -> Calibration:
    """Fit time = start + bytes / bandwidth to (traffic, seconds) of one kernel at several sizes.

    Least squares of the relative errors: a kernel of 10 µs counts as much as one of 10 ms. The start is at least 0.
    Raises ValueError for fewer than two different sizes, for times that do not grow with the bytes and, where the
    `accelerator` is given, for a bandwidth above its memory's: then a cache was measured.
    """
    points = [(float(dram_bytes(work)), float(seconds)) for work, seconds in measurements]
    sizes = {size for size, _ in points}
    if len(sizes) < 2 or min(sizes) < 0 or any(not seconds > 0 for _, seconds in points):
        raise ValueError(f"measurements = {points}: expected positive times of at least two different numbers of bytes")
    start, slope = relative_least_squares(points)
    if start < 0:
        start, slope = 0.0, through_origin(points)
    if not slope > 0:
        raise ValueError(f"slope = {slope:.3g} s/byte: expected times that grow with the bytes; measure larger sizes")
    if accelerator is not None and 1 / slope > accelerator.memory_bandwidth:
        raise ValueError(
            f"bandwidth = {1 / slope:.3g} bytes/s: {accelerator.name}'s memory has {accelerator.memory_bandwidth:.3g}; "
            "the data came from a cache: flush it between samples, or measure larger sizes"
        )
    residual = max(abs((start + slope * size) / seconds - 1) for size, seconds in points)
    return Calibration(1 / slope, start, effective_l2(accelerator) if accelerator else None, min(residual, 0.99))


def dram_bytes(work: Work | Traffic | float) -> float:
    """Bytes between memory and chip: of the L2 model where there was one, else unique bytes."""
    if isinstance(work, Traffic):
        return work.work.bytes
    return work.bytes if isinstance(work, Work) else work


def relative_least_squares(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(start, slope) that minimise Σ ((start + slope · size) / seconds − 1)²: the normal equations of two unknowns."""
    weight = sum(1 / seconds**2 for _, seconds in points)
    first = sum(size / seconds**2 for size, seconds in points)
    second = sum((size / seconds) ** 2 for size, seconds in points)
    constant = sum(1 / seconds for _, seconds in points)
    linear = sum(size / seconds for size, seconds in points)
    determinant = weight * second - first * first
    return (
        (second * constant - first * linear) / determinant,
        (weight * linear - first * constant) / determinant,
    )


def through_origin(points: Sequence[tuple[float, float]]) -> float:
    return sum(size / seconds for size, seconds in points) / sum((size / seconds) ** 2 for size, seconds in points)
