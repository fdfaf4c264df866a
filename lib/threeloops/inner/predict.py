"""How long a kernel will take on a device, from what it moves and computes: an interval, and what it rests on.

Data flow between memory and chip at the bandwidth, or slower if too few bytes are under way at once (Little's law:
bytes in flight = latency × bandwidth). Matrix units compute, and so do the vector units, in waves of programs of which
the last may be partly empty. And a launch takes time to start. At best all of it overlaps and the longest part
decides; at worst nothing does and the parts add up. The truth lies between, if the parts are right.
"""

from dataclasses import dataclass
from typing import Literal

from threeloops.hardware.accelerators import Accelerator, dtype_name
from threeloops.inner.bench.codegen.generated_code import Code
from threeloops.inner.bench.codegen.occupancy import compilation_target
from threeloops.inner.bench.meter.traffic import Traffic
from threeloops.inner.bench.predict.calibration import Calibration, calibrate
from threeloops.inner.bench.predict.parts import Latency, demand_of, latency_time, memory_time, wave_factors
from threeloops.inner.costs import Work

__all__ = ["Calibration", "Latency", "Prediction", "calibrate", "predict"]

Bound = Literal["memory", "latency", "compute", "start"]


@dataclass(frozen=True)
class Prediction:
    """Between `low` and `high` seconds. The parts are those of `low`, where they overlap; `how`: what was assumed."""

    low: float
    high: float
    memory_seconds: float
    compute_seconds: float
    start_seconds: float
    bound: Bound
    accelerator: str
    how: tuple[str, ...] = ()

    def __add__(self, other: "Prediction") -> "Prediction":
        """One launch after the other, on the same device."""
        if not isinstance(other, Prediction):
            return NotImplemented
        if self.accelerator != other.accelerator:
            raise ValueError(f"a prediction for {self.accelerator} and one for {other.accelerator} do not add up")
        longer = self if self.low >= other.low else other
        return Prediction(
            self.low + other.low,
            self.high + other.high,
            self.memory_seconds + other.memory_seconds,
            self.compute_seconds + other.compute_seconds,
            self.start_seconds + other.start_seconds,
            longer.bound,
            self.accelerator,
            tuple(dict.fromkeys(self.how + other.how)),
        )

    def __radd__(self, other: object) -> "Prediction":
        """`sum` of several begins with 0."""
        return self if other == 0 else NotImplemented

    def error(self, measured_seconds: float) -> float:
        """How far a measurement lies outside, relative to the nearer end: 0 inside, 0.1 for 10% above, −0.1 below."""
        nearest = min(max(measured_seconds, self.low), self.high)
        return measured_seconds / nearest - 1

    def report(self) -> str:
        from threeloops.inner.bench.predict.report import report

        return report({"": self})


def predict(
    work: Work | Traffic,
    accelerator: Accelerator,
    *,
    dtype: object,
    code: Code | None = None,
    calibration: Calibration | None = None,
    programs: int | None = None,
    latency: Latency | None = None,
) -> Prediction:
    """Seconds that `work`, of one launch, takes on `accelerator`, with its matrix products in `dtype`.

    `work`: what it must do at least (Work), or what was metered. `code`: what was compiled for this device's
    generation; it says whether matrix units are used, and how many programs are resident. `calibration`: what the
    device was measured to do, instead of the rates on its data sheet. `programs`: if the traffic does not say. With
    `code` and `latency`, kernels that keep too few bytes in flight are predicted to be slow.
    Raises LookupError if the device's rate for `dtype` is not known, ValueError if it cannot run the code.
    """
    require_runs(code, accelerator)
    how: list[str] = []
    programs = programs or (work.programs if isinstance(work, Traffic) else 0)
    demand = demand_of(work, accelerator, code, calibration, how)
    memory = memory_time(demand, accelerator, calibration, how)
    slow = latency_time(demand, accelerator, code, latency, programs, how)
    matrix_rate = (calibration and calibration.matrix_rate) or (demand.matrix_flops and accelerator.rate(dtype)) or 1.0
    vector_rate = (demand.vector_flops and accelerator.rate("fp32")) or 1.0
    if demand.matrix_flops:
        how.append(f"arithmetic at {matrix_rate / 1e12:.4g} TFLOP/s of {dtype_name(dtype)}")
    filled = wave_factors(accelerator, code, programs, how)
    matrix = [demand.matrix_flops / matrix_rate * factor for factor in filled]
    vector = [demand.vector_flops / vector_rate * factor for factor in filled]
    start = calibration.start_seconds if calibration else 0.0
    if calibration is None:
        how.append("rates of the data sheet and no time to start a launch: a floor; calibrate with measurements")
    if code is not None and code.spills:
        how.append(f"{code.spilled_bytes} bytes a thread are spilled: their traffic is not counted")
    moving = [max(memory[end], slow[end]) for end in (0, 1)]
    computing = [max(matrix[0], vector[0]), matrix[1] + vector[1]]
    widened = calibration.residual if calibration else 0.0
    return Prediction(
        low=(start + max(moving[0], computing[0])) * (1 - widened),
        high=(start + moving[1] + computing[1]) * (1 + widened),
        memory_seconds=moving[0],
        compute_seconds=computing[0],
        start_seconds=start,
        bound=bound_of(start, memory[0], slow[0], computing[0]),
        accelerator=accelerator.name,
        how=tuple(how),
    )


def require_runs(code: Code | None, accelerator: Accelerator) -> None:
    if code is None:
        return
    vendor = {"cuda": "NVIDIA", "hip": "AMD"}[compilation_target(code.target).backend]
    if vendor != accelerator.vendor:
        raise ValueError(f"code.target = {code.target}: {accelerator.name} does not run it; compile for its generation")
    if not code.fits:
        raise ValueError(f"{code.name} does not fit {code.target}: {'; '.join(code.misfits)}; choose smaller tiles")


def bound_of(start: float, memory: float, slow: float, compute: float) -> Bound:
    """The longest part; of equal ones the first of memory, latency, compute, start."""
    parts: dict[Bound, float] = {"memory": memory, "latency": slow, "compute": compute, "start": start}
    return max(parts, key=lambda part: parts[part])
