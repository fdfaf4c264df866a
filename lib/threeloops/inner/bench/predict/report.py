"""Showing predictions: a table, and a picture of intervals beside what was measured."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from threeloops.inner.predict import Prediction
from threeloops.palette import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
