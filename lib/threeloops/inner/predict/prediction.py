"""How long a kernel will take on a device, from what it moves and computes: an interval, and what it rests on.

Data flow between memory and chip at the bandwidth, or slower if too few bytes are under way at once (Little's law:
bytes in flight = latency × bandwidth). Matrix units compute, and so do the vector units, in waves of programs of which
the last may be partly empty. And a launch takes time to start. At best all of it overlaps and the longest part
decides; at worst nothing does and the parts add up. The truth lies between, if the parts are right.

Showing predictions: a table, and a picture of intervals beside what was measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from threeloops.hardware.accelerators import Accelerator, dtype_name
from threeloops.inner.codegen.generated_code import Code
from threeloops.inner.codegen.occupancy import compilation_target
from threeloops.inner.costs import Work
from threeloops.inner.meter.traffic import Traffic
from threeloops.inner.predict.calibration import Calibration, calibrate
from threeloops.inner.predict.parts import Latency, demand_of, latency_time, memory_time, wave_factors
from threeloops.palette import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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


PREDICTED, INSIDE, OUTSIDE = palette.sky, palette.green, palette.vermillion


def report(predictions: Mapping[str, Prediction], measured: Mapping[str, float] | None = None) -> str:
    """One line a prediction, with the measured seconds and how far outside they lie; below, what it all rests on."""
    measured = measured or {}
    header = ("kernel", "device", "predicted", "bound by", "memory", "compute", "start", "measured", "outside by")
    lines: list[tuple[str, ...]] = [header]
    for name, each in predictions.items():
        found = measured.get(name)
        parts = (each.memory_seconds, each.compute_seconds, each.start_seconds)
        beside = (duration(found), outside(each, found)) if found else ("", "")
        lines.append((name, each.accelerator, span(each), each.bound, *map(duration, parts), *beside))
    keep = [column for column in range(len(lines[0])) if any(line[column] for line in lines[1:])]
    widths = {column: max(len(line[column]) for line in lines) for column in keep}
    text = ["  ".join(line[column].ljust(widths[column]) for column in keep).rstrip() for line in lines]
    text.insert(1, "  ".join("─" * widths[column] for column in keep))
    assumptions = dict.fromkeys(line for each in predictions.values() for line in each.how)
    return "\n".join([*text, *(f"· {line}" for line in assumptions)])


def plot_predictions(
    predictions: Mapping[str, Prediction], measured: Mapping[str, float] | None = None, ax: "Axes | None" = None
) -> "Axes":
    """Each predicted interval as a bar on a logarithmic axis of seconds, and the measured time as a dot: green inside,
    red outside. The first prediction is on top."""
    if not predictions:
        raise ValueError("predictions = {}: expected at least one to draw")
    measured = measured or {}
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(7.5, 1.3 + 0.4 * len(predictions)), layout="constrained").subplots()
    ax.set_xscale("log")
    ends = [end for each in predictions.values() for end in (each.low, each.high)] + list(measured.values())
    first, last = min(ends), max(ends)
    for place, (name, each) in enumerate(predictions.items()):
        ax.plot([each.low, each.high], [place, place], color=PREDICTED, linewidth=9, solid_capstyle="butt", zorder=2)
        ax.plot([each.low, each.high], [place, place], "|", color=PREDICTED, markersize=14, markeredgewidth=2, zorder=2)
        if (found := measured.get(name)) is not None:
            colour = OUTSIDE if each.error(found) else INSIDE
            ax.plot(found, place, "o", color=colour, markersize=8, markeredgecolor="white", zorder=3)
        text = f"{span(each)}, {each.bound}" + (f"; measured {duration(found)}" if found else "")
        right = each.low * each.high > first * last  # the text runs towards the middle of the picture
        at, align = (each.high, "right") if right else (each.low, "left")
        ax.annotate(text, (at, place), (0, 9), textcoords="offset points", fontsize=8.5, color="0.25", ha=align)
    margin = max(1.3, (last / first) ** 0.04)
    ax.set_xlim(first / margin, last * margin)
    ax.set_ylim(len(predictions) - 0.5, -0.7)
    ax.set_yticks(range(len(predictions)), list(predictions))
    ax.set_xlabel("seconds")
    devices = dict.fromkeys(each.accelerator for each in predictions.values())
    ax.set_title(f"predicted for {', '.join(devices)}", loc="left", fontsize=10)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", color="0.9", linewidth=0.8)
    ax.grid(visible=False, axis="y")
    ax.spines[["top", "right", "left"]].set_visible(False)
    return ax


def outside(prediction: Prediction, seconds: float) -> str:
    error = prediction.error(seconds)
    return f"{error:+.0%}" if error else "inside"


def span(prediction: Prediction) -> str:
    low, high = duration(prediction.low), duration(prediction.high)
    return low if low == high else f"{low} … {high}"


def duration(seconds: float) -> str:
    """0.00012 → "120 µs"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
