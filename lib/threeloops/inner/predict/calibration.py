"""The calibration of a device: the two measured numbers of a streaming kernel's time, start + bytes / bandwidth.

Fitted to one simple kernel at several sizes, they predict other kernels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from threeloops.hardware.accelerators import Accelerator
from threeloops.inner.costs import Work

__all__ = ["Calibration", "calibrate"]


@dataclass(frozen=True)
class Calibration:
    """Bytes/s from memory, and the seconds that a launch takes in addition to its data flow.

    `residual`: the largest relative error of the fit, by which predictions are widened.
    """

    bandwidth: float
    start_seconds: float = 0.0
    residual: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth = {self.bandwidth}: expected a positive rate")
        if not (self.start_seconds >= 0 and 0 <= self.residual < 1):
            raise ValueError(
                f"start_seconds = {self.start_seconds}, residual = {self.residual}: expected at least 0 s, and 0 to 1"
            )


def calibrate(measurements: Sequence[tuple[Work, float]], accelerator: Accelerator | None = None) -> Calibration:
    """Fit time = start + bytes / bandwidth to (work, seconds) of one kernel at several sizes.

    Least squares of the relative errors, so that a kernel of 10 µs counts as much as one of 10 ms. The start is at
    least 0. Raises ValueError for fewer than two different sizes, for times that do not grow with the bytes, and, if
    `accelerator` is given, for a bandwidth above that of its memory: then a cache was measured.
    """
    points = [(float(work.bytes), float(seconds)) for work, seconds in measurements]
    sizes = {size for size, _ in points}
    if len(sizes) < 2 or any(not seconds > 0 for _, seconds in points):
        raise ValueError(f"measurements = {points}: expected positive times of at least two different numbers of bytes")
    # Minimise Σ ((start + slope · size) / seconds − 1)².
    relative = np.array([(1 / seconds, size / seconds) for size, seconds in points])
    start, slope = _least_squares(relative)
    if start < 0:
        start, slope = 0.0, *_least_squares(relative[:, 1:])
    if not slope > 0:
        raise ValueError(f"slope = {slope:.3g} s/byte: expected times that grow with the bytes; measure larger sizes")
    if accelerator is not None and 1 / slope > accelerator.memory_bandwidth:
        raise ValueError(
            f"bandwidth = {1 / slope:.3g} bytes/s: {accelerator.name}'s memory has {accelerator.memory_bandwidth:.3g}; "
            "the data came from a cache: flush it between samples, or measure larger sizes"
        )
    residual = max(abs((start + slope * size) / seconds - 1) for size, seconds in points)
    return Calibration(1 / slope, start, min(residual, 0.99))


def _least_squares(relative: np.ndarray) -> list[float]:
    """Return the coefficients that bring relative · coefficients closest to 1."""
    # Columns differ by the size in bytes; equal scales keep the small one above the solver's cut-off.
    scale = np.abs(relative).max(axis=0)
    return (np.linalg.lstsq(relative / scale, np.ones(len(relative)), rcond=None)[0] / scale).tolist()
