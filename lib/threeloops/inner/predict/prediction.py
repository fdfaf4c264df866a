"""Predict how long a kernel will take on a device, from its traffic and its arithmetic, as an interval with its
assumptions.

Data flows between memory and chip at the bandwidth. Matrix units and vector units compute in waves of programs, and the
last wave may be partly empty. A launch takes time to start. At best all of this overlaps and the longest part decides;
at worst nothing overlaps and the parts add up. The true time lies between, if the parts are right. With rates that were
measured on the device they are. With those of a data sheet they are not, because no kernel reaches them. The interval
then comes from published measurements: it holds most of the times that kernels of this kind took on this device.
"""

from dataclasses import dataclass
from typing import Literal

from threeloops.hardware.accelerators import Accelerator, dtype_name
from threeloops.inner.codegen.generated_code import Code
from threeloops.inner.codegen.occupancy import compilation_target
from threeloops.inner.costs import Work
from threeloops.inner.meter.traffic import Traffic
from threeloops.inner.predict.calibration import Calibration
from threeloops.inner.predict.parts import demand_of, wave_factors
from threeloops.inner.predict.published import spread_of

__all__ = ["Bound", "Prediction", "predict"]

Bound = Literal["memory", "compute", "start"]


@dataclass(frozen=True)
class Prediction:
    """A time between `low` and `high` seconds. The parts are those at best, when they overlap: by the data sheet, or by
    a calibration. `how` lists the assumptions."""

    low: float
    high: float
    memory_seconds: float
    compute_seconds: float
    start_seconds: float
    bound: Bound
    accelerator: str
    how: tuple[str, ...] = ()

    def error(self, measured_seconds: float) -> float:
        """Return how far a measurement lies outside, relative to the nearer end: 0 inside, 0.1 for 10% above, −0.1
        below."""
        nearest = min(max(measured_seconds, self.low), self.high)
        return measured_seconds / nearest - 1


def predict(
    work: Work | Traffic,
    accelerator: Accelerator,
    *,
    dtype: object,
    code: Code | None = None,
    calibration: Calibration | None = None,
    programs: int | None = None,
) -> Prediction:
    """Predict the seconds of one launch on `accelerator`, with its matrix products in `dtype`.

    `work` is the least that the launch must do (Work), or its metered traffic. `code` is compiled for this device's
    generation, and tells whether matrix units are used and how many programs are resident. `calibration` holds the
    device's measured rates, which replace the rates on its data sheet. `programs` is their number, if the traffic does
    not tell. Raises LookupError if the device's rate for `dtype` is not known, and ValueError if the device cannot run
    the code.

    Without a calibration, the interval is derived from the residuals of published measurements, by device and kind of
    kernel (`Work.kind`): a launch, and a multiple of the time by the data sheet. It holds 86% of the rows in the fit. A
    device that was not measured gets the interval of all devices that were, and a kernel of another kind that of all
    kinds; both are wider. `how` says which. A time may be below the sheet's if the operands were in the L2. With a
    calibration, the interval goes from full overlap to none, widened by the calibration's residual.
    """
    _require_runs(code, accelerator)
    how: list[str] = []
    programs = programs or (work.programs if isinstance(work, Traffic) else 0)
    demand = demand_of(work, accelerator, code, how)
    fitted = calibration or Calibration(accelerator.memory_bandwidth)
    how.append(f"memory at {fitted.bandwidth / 1e9:.4g} GB/s")
    memory = [traffic / fitted.bandwidth for traffic in demand.bytes]
    matrix_rate = (demand.matrix_flops and accelerator.rate(dtype)) or 1.0
    vector_rate = (demand.vector_flops and accelerator.rate("fp32")) or 1.0
    if demand.matrix_flops:
        how.append(f"arithmetic at {matrix_rate / 1e12:.4g} TFLOP/s of {dtype_name(dtype)}")
    filled = wave_factors(accelerator, code, programs, how)
    matrix = [demand.matrix_flops / matrix_rate * factor for factor in filled]
    vector = [demand.vector_flops / vector_rate * factor for factor in filled]
    if code is not None and code.spills:
        how.append(f"{code.spilled_bytes} bytes per thread are spilled: their traffic is not counted")
    computing = [max(matrix[0], vector[0]), matrix[1] + vector[1]]
    start = fitted.start_seconds
    best = start + max(memory[0], computing[0])
    worst = start + memory[1] + computing[1]
    if calibration is None:
        kind = work.kind if isinstance(work, Work) else ""
        spread = spread_of(accelerator.name, kind, dtype)
        low, high = spread.interval(best, worst)
        how.append(f"rates of the data sheet; {spread.basis}")
    else:
        low = best * (1 - calibration.residual)
        high = worst * (1 + calibration.residual)
    parts: dict[Bound, float] = {"memory": memory[0], "compute": computing[0], "start": start}
    return Prediction(
        low=low,
        high=high,
        memory_seconds=memory[0],
        compute_seconds=computing[0],
        start_seconds=start,
        bound=max(parts, key=lambda part: parts[part]),
        accelerator=accelerator.name,
        how=tuple(how),
    )


def _require_runs(code: Code | None, accelerator: Accelerator) -> None:
    if code is None:
        return
    vendor = {"cuda": "NVIDIA", "hip": "AMD"}[compilation_target(code.target).backend]
    if vendor != accelerator.vendor:
        raise ValueError(f"code.target = {code.target}: {accelerator.name} does not run it; compile for its generation")
    if not code.fits:
        raise ValueError(f"{code.name} does not fit {code.target}: {'; '.join(code.misfits)}; choose smaller tiles")
