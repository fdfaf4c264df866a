"""Predict the time of a kernel from the least that it must move and compute, on one device.

On a GPU the device is that GPU, calibrated on a single kernel, saxpy at several sizes; elsewhere an H100's data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from threeloops.hardware import Accelerator, accelerator, this_machine
from threeloops.inner import costs
from threeloops.inner.costs import Work
from threeloops.inner.kernels.rows.saxpy import saxpy
from threeloops.inner.predict import predict
from threeloops.inner.predict.calibration import Calibration, calibrate
from threeloops.inner.timing import benchmark

from benchmarks.kernel_part import Row

DEFAULT = "H100 SXM"
CALIBRATION_ELEMENTS = tuple(2**power for power in range(20, 29))
LAUNCHES = 2
"""A measurement counts from so many times the launch alone."""


@dataclass(frozen=True)
class Predictor:
    """A device, and what it was measured to do, if anything; `refused` says why a calibration was not used."""

    accelerator: Accelerator
    calibration: Calibration | None = None
    refused: str = ""

    def __call__(self, work: Work, dtype: torch.dtype, measured: float | None = None) -> Row:
        """Seconds at least and at most; with a measurement, how far outside of that it lies (0: inside)."""
        predicted = predict(work, self.accelerator, dtype=dtype, calibration=self.calibration)
        basis = "calibrated on saxpy" if self.calibration else "data sheet"
        row: Row = {
            "predicted_low": predicted.low,
            "predicted_high": predicted.high,
            "predicted_bound": predicted.bound,
            "predicted_for": f"{self.accelerator.name} ({basis})",
        }
        if self.refused:
            row["not_calibrated"] = self.refused
        return row if measured is None else {**row, "prediction_error": predicted.error(measured)}


def predictor(where: str) -> Predictor:
    """Return a predictor for this machine's GPU, or for `DEFAULT` if there is none."""
    if where == "cpu":
        return Predictor(accelerator(DEFAULT))
    try:
        found = accelerator(torch.cuda.get_device_name(where))
    except LookupError:  # not in the table: measure it
        found = this_machine(where)
    try:
        return Predictor(found, calibrated(found, where))
    except ValueError as error:  # a prediction less is no reason to lose a time
        return Predictor(found, refused=str(error))


def calibrated(found: Accelerator, where: str) -> Calibration:
    """Bandwidth and start of saxpy on this GPU. Raises ValueError where the times fit no device like it."""

    def seconds_of(elements: int) -> float:
        inputs = (2.0, *(torch.randn(elements, device=where) for _ in range(2)))
        return benchmark(saxpy, lambda: inputs, device=where).median

    floor = seconds_of(1)
    times = [(costs.saxpy(elements, 4), seconds_of(elements)) for elements in CALIBRATION_ELEMENTS]
    return calibrate(above_floor(times, floor), found)


def above_floor(times: list[tuple[Work, float]], floor: float) -> list[tuple[Work, float]]:
    """The measurements in which more than the launch was timed: those that take at least twice as long as the launch of
    a single element. Were the others fitted too, their constant time would make memory look faster than it is.

    Raises ValueError where fewer than two are left.
    """
    kept = [(work, seconds) for work, seconds in times if seconds >= LAUNCHES * floor]
    if len(kept) < 2:
        raise ValueError(
            f"launch of saxpy = {floor * 1e6:.3g} µs: expected two sizes that take {LAUNCHES} times as long, found "
            f"{len(kept)}; measure larger sizes"
        )
    return kept
