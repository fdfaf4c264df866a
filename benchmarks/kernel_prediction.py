"""What the model predicts for a kernel: from the least that it must move and compute, on one device.

On a GPU the device is that GPU, calibrated on a single kernel, saxpy at several sizes; elsewhere an H100's data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from threeloops.hardware import Accelerator, accelerator, this_machine
from threeloops.inner import costs
from threeloops.inner.bench.predict.calibration import Calibration, calibrate
from threeloops.inner.costs import Work
from threeloops.inner.kernels.saxpy import saxpy
from threeloops.inner.predict import predict
from threeloops.inner.timing import benchmark

from benchmarks.kernel_part import Row

DEFAULT = "H100 SXM"
CALIBRATION_ELEMENTS = tuple(2**power for power in range(20, 28))


@dataclass(frozen=True)
class Predictor:
    """A device, and what it was measured to do, if anything."""

    accelerator: Accelerator
    calibration: Calibration | None = None

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
        return row if measured is None else {**row, "prediction_error": predicted.error(measured)}


def predictor(where: str) -> Predictor:
    """For the GPU at hand, or for `DEFAULT` where there is none."""
    if where == "cpu":
        return Predictor(accelerator(DEFAULT))
    try:
        found = accelerator(torch.cuda.get_device_name(where))
    except LookupError:  # not in the table: measure it
        found = this_machine(where)
    return Predictor(found, calibrated(found, where))


def calibrated(found: Accelerator, where: str) -> Calibration:
    measurements = []
    for elements in CALIBRATION_ELEMENTS:
        inputs = (2.0, *(torch.randn(elements, device=where) for _ in range(2)))
        seconds = benchmark(saxpy, lambda: inputs, device=where).median  # noqa: B023  called at once
        measurements.append((costs.saxpy(elements, 4), seconds))
    return calibrate(measurements, found)
