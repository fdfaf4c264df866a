"""How long a kernel will take on a device, from what it moves and computes: an interval, and what it rests on.

Data flows between memory and chip at the bandwidth, or more slowly if too few bytes are in flight (Little's law: bytes
in flight = latency × bandwidth). Matrix units and vector units compute in waves of programs, of which the last may be
partly empty. A launch takes time to start. At best all of this overlaps and the longest part decides; at worst nothing
overlaps and the parts add up. The true time lies between, if the parts are right.
"""

from dataclasses import dataclass, replace
from typing import Literal

from threeloops.hardware.accelerators import Accelerator, dtype_name
from threeloops.inner.codegen.generated_code import Code
from threeloops.inner.codegen.occupancy import compilation_target
from threeloops.inner.costs import Work
from threeloops.inner.meter.traffic import Traffic
from threeloops.inner.predict.calibration import Calibration
from threeloops.inner.predict.parts import Latency, demand_of, latency_time, wave_factors

__all__ = ["Bound", "Prediction", "predict"]

Bound = Literal["memory", "latency", "compute", "start"]
_PARTS = ("low", "high", "memory_seconds", "compute_seconds", "start_seconds")


@dataclass(frozen=True)
class Prediction:
    """Between `low` and `high` seconds. The parts are those of `low`, where they overlap. `how`: the assumptions."""

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
        summed = {part: getattr(self, part) + getattr(other, part) for part in _PARTS}
        return replace(longer, **summed, how=tuple(dict.fromkeys(self.how + other.how)))

    def __radd__(self, other: object) -> "Prediction":
        """`sum` starts with 0."""
        return self if other == 0 else NotImplemented

    def error(self, measured_seconds: float) -> float:
        """How far a measurement lies outside, relative to the nearer end: 0 inside, 0.1 for 10% above, −0.1 below."""
        nearest = min(max(measured_seconds, self.low), self.high)
        return measured_seconds / nearest - 1

    def report(self) -> str:
        """One line for the interval and its parts, and one for each assumption."""
        low, high = _duration(self.low), _duration(self.high)
        span = low if low == high else f"{low} … {high}"
        seconds = {"memory": self.memory_seconds, "compute": self.compute_seconds, "start": self.start_seconds}
        parts = ", ".join(f"{name} {_duration(part)}" for name, part in seconds.items())
        return "\n· ".join([f"{self.accelerator}: {span}, bound by {self.bound} ({parts})", *self.how])


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
    """Seconds that one launch takes on `accelerator`, with its matrix products in `dtype`.

    `work`: the least that the launch must do (Work), or its metered traffic. `code`: compiled for this device's
    generation; tells whether matrix units are used and how many programs are resident. `calibration`: what the device
    was measured to do, in place of the rates on its data sheet. `programs`: their number, if the traffic does not tell.
    With `code` and `latency`, kernels that keep too few bytes in flight are predicted to be slow.
    Raises LookupError if the device's rate for `dtype` is not known, ValueError if it cannot run the code.
    """
    _require_runs(code, accelerator)
    how: list[str] = []
    programs = programs or (work.programs if isinstance(work, Traffic) else 0)
    demand = demand_of(work, accelerator, code, how)
    fitted = calibration or Calibration(accelerator.memory_bandwidth)
    how.append(f"memory at {fitted.bandwidth / 1e9:.4g} GB/s")
    memory = [each / fitted.bandwidth for each in demand.bytes]
    slow = latency_time(demand, accelerator, code, latency, programs, how)
    matrix_rate = (demand.matrix_flops and accelerator.rate(dtype)) or 1.0
    vector_rate = (demand.vector_flops and accelerator.rate("fp32")) or 1.0
    if demand.matrix_flops:
        how.append(f"arithmetic at {matrix_rate / 1e12:.4g} TFLOP/s of {dtype_name(dtype)}")
    filled = wave_factors(accelerator, code, programs, how)
    matrix = [demand.matrix_flops / matrix_rate * factor for factor in filled]
    vector = [demand.vector_flops / vector_rate * factor for factor in filled]
    if calibration is None:
        how.append("rates of the data sheet and no time to start a launch: a floor; calibrate with measurements")
    if code is not None and code.spills:
        how.append(f"{code.spilled_bytes} bytes per thread are spilled: their traffic is not counted")
    moving = [max(memory[end], slow[end]) for end in (0, 1)]
    computing = [max(matrix[0], vector[0]), matrix[1] + vector[1]]
    start, widened = fitted.start_seconds, fitted.residual
    parts: dict[Bound, float] = {"memory": memory[0], "latency": slow[0], "compute": computing[0], "start": start}
    return Prediction(
        low=(start + max(moving[0], computing[0])) * (1 - widened),
        high=(start + moving[1] + computing[1]) * (1 + widened),
        memory_seconds=moving[0],
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


def _duration(seconds: float) -> str:
    """0.00012 → "120 µs"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
