"""Rooflines, spans and repairs, as lab 01 draws them.

The lab's programs are lists of launches: the host issues kernels, and the device runs them in that order. `after_fix`
changes such a trace as one repair would. `repair` goes on until the next repair saves too little.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from threeloops.figures import figure, palette
from threeloops.hardware import accelerator
from threeloops.inner.costs import Work, attention, elementwise, layernorm, matmul, softmax
from threeloops.inner.roofline import Roofline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BYTES", "MACHINES", "OPERATIONS", "REFERENCE", "Judged", "Round", "after_fix", "calls_of", "draw_held",
    "draw_judged", "draw_measured", "draw_question", "draw_repairs", "draw_roofline", "draw_rows", "judge", "repair",
]  # fmt: skip

MACHINES = ["H100 SXM", "V100 SXM2", "A100 SXM 80GB", "H200 SXM", "B200", "L40S", "RTX 4090", "MI300X", "TPU v5p"]
BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp32": 4}
OPERATIONS: dict[str, Callable[[int, float], Work]] = {
    "matmul (tokens × 4096 × 4096)": lambda tokens, size: matmul(tokens, 4096, 4096, size),
    "attention, scores in memory": lambda tokens, size: attention(1, 32, tokens, tokens, 128, size),
    "attention, fused": lambda tokens, size: attention(1, 32, tokens, tokens, 128, size, fused=True),
    "softmax (tokens × tokens)": lambda tokens, size: softmax(tokens, tokens, size),
    "LayerNorm (tokens × 4096)": lambda tokens, size: layernorm(tokens, 4096, size),
    "GELU (tokens × 4096)": lambda tokens, size: elementwise(tokens * 4096, size, flops_per_element=8),
}
_COLOURS = {
    "compute": palette.blue,
    "memory": palette.orange,
    "host": palette.purple,
    "unexplained": palette.grey,
    "impossible": palette.vermillion,
}
_LEAST_GAIN = 0.1
_ROWS = [2**power for power in range(13)]


class _Roof(Protocol):
    """FLOP/s and bytes/s."""

    @property
    def peak_flops(self) -> float: ...
    @property
    def bandwidth(self) -> float: ...


@dataclass(frozen=True)
class Judged:
    """A row of `draw_judged`: a name, a span, and its verdict."""

    name: str
    span: Any
    verdict: Any


@dataclass(frozen=True)
class Round:
    """A repair: what limits the trace after it, which fix it was, and how long the trace takes now."""

    bound: str
    fix: str
    wall_us: float


REFERENCE = {
    16: [
        Round("host", "as it was", 3756.1),
        Round("memory", "CUDA graph", 1267.3),
        Round("memory", "fusion", 809.6),
        Round("memory", "better kernels", 685.1),
    ],
    128: [Round("memory", "as it was", 7804.2), Round("memory", "fusion", 4983.2)],
}
"""The rounds that lab 01's model answers lead to, by the number of images in the synthetic eager pass."""


def judge(profile: Any, span: Callable[..., Any], costliest: Callable, classify: Callable) -> list[Judged]:
    """Judge a whole pass and its costliest operators. `span` makes a span of flops, bytes, busy_us and wall_us."""
    events = profile.events
    on_cpu = profile.device == "cpu"
    busy = sum((event.cpu_us if event.parent < 0 else 0.0) if on_cpu else event.device_us for event in events)
    flops = sum(event.flops for event in events)
    moved = sum(event.bytes for event in events)
    spans = [("the whole pass", span(flops, moved, min(busy, profile.wall_us), profile.wall_us))]
    spans += [
        (f"{cost.calls} × {cost.name.split('::')[-1]}", span(cost.flops, cost.bytes, cost.busy_us, cost.busy_us))
        for cost in costliest(profile)
    ]
    return [Judged(name, one, classify(one, profile.roof)) for name, one in spans]


def after_fix(trace: Sequence[Any], fix: str, roof: _Roof) -> list[Any]:
    """Return the trace with a fix applied: "CUDA graph", "no waiting", "fusion", "faster format" or "better kernels".

    A fused kernel has the work of its longest member, and a kernel in a faster format half of the FLOPs, so that the
    result can be repaired again.
    """
    fixed: list[Any] = []
    before = None
    for call in trace:
        if fix == "fusion" and before is not None and _fuses(before, call):
            longest = max(fixed[-1], call, key=lambda one: one.busy_us)
            fixed[-1] = replace(longest, issue_us=fixed[-1].issue_us, waits=call.waits)
        else:
            fixed.append(replace(call, **_change(call, before, fix, roof)))
        before = call
    return fixed


def _fuses(before: Any, call: Any) -> bool:
    return not before.waits and all(one.flops < 10 * one.bytes for one in (before, call))


def _change(call: Any, before: Any, fix: str, roof: _Roof) -> dict[str, Any]:
    compute = call.flops / roof.peak_flops * 1e6
    floor = max(compute, call.bytes / roof.bandwidth * 1e6)
    explained = floor >= 0.6 * call.busy_us
    if fix == "CUDA graph" and before is not None and not before.waits:
        return {"issue_us": 0.5}
    if fix == "no waiting":
        return {"waits": False}
    if fix == "faster format" and explained and compute == floor:
        return {"busy_us": call.busy_us / 2, "flops": call.flops / 2}
    if fix == "better kernels" and not explained:
        return {"busy_us": floor / 0.8}
    return {}


def calls_of(profile: Any, call: Callable[..., Any]) -> list[Any]:
    """Return the launches of a pass on a GPU. `call` makes one of issue_us, busy_us, flops and bytes.

    A kernel is launched 7.5 µs after the start of its operator, as in the synthetic traces.
    """
    working = [event for event in profile.events if event.device_us > 0]
    launched = [event.start_us + 7.5 for event in working]
    return [
        call(moment - before, event.device_us, event.flops, event.bytes)
        for event, moment, before in zip(working, launched, [0.0, *launched], strict=False)
    ]


def repair(
    trace: Sequence[Any],
    roof: _Roof,
    span: Callable[..., Any],
    classify: Callable[..., Any],
    choose_fix: Callable[..., str],
    wall_us: Callable[..., float],
) -> list[Round]:
    """Apply the chosen fix again and again, until one saves less than 10% or comes up again.

    Each round says what limits the trace after it. The first has no fix.
    """
    fixes: list[str] = []
    rounds: list[Round] = []
    while True:
        wall = wall_us(trace)
        flops, moved, busy = (sum(getattr(call, name) for call in trace) for name in ("flops", "bytes", "busy_us"))
        bound = classify(span(flops, moved, busy, max(wall, busy)), roof).bound
        rounds.append(Round(bound, fixes[-1] if fixes else "as it was", wall))
        fix = choose_fix(trace, roof)
        fixed = after_fix(trace, fix, roof)
        if fix in fixes or wall_us(fixed) > (1 - _LEAST_GAIN) * wall:
            return rounds
        trace = fixed
        fixes.append(fix)


def draw_question() -> "Figure":
    """Draw memory, chip and the pipe between them, and five operations whose use of the chip is unknown."""
    fig, axes = figure(width=9.5, height=3.3)
    for left, name in ((0.0, "memory"), (4.6, "chip")):
        axes.barh([2.6], [2.4], left=left, height=0.9, color="none", edgecolor=palette.ink)
        axes.text(left + 1.2, 2.6, name, ha="center", va="center", weight="bold")
    axes.annotate("", (4.5, 2.6), (2.5, 2.6), arrowprops={"arrowstyle": "-|>", "color": palette.orange, "linewidth": 4})
    axes.text(3.5, 2.75, "3.35 TB/s", ha="center", va="bottom")
    axes.text(7.2, 2.6, "989 TFLOP/s in BF16", va="center")
    names = ("matmul, 32,768 tokens", "matmul, one token", "attention", "softmax", "LayerNorm")
    for row, name in enumerate(names):
        level = 1.6 - 0.5 * row
        axes.text(2.4, level, name, ha="right", va="center")
        axes.barh([level], [7.5], left=2.6, height=0.3, color="none", edgecolor=palette.grey)
        axes.text(6.35, level, "?", ha="center", va="center", color=palette.vermillion, weight="bold")
    axes.set(xlim=(-0.4, 11), ylim=(-0.8, 3.2), title="How much of an H100's math can each operation keep busy?")
    axes.set_axis_off()
    return fig


def draw_rows(rows: int) -> "Figure":
    """Draw the two floors of x @ W on an H100 against the rows of x, and mark them at `rows`."""
    roof = Roofline(accelerator("H100 SXM"), "bf16")
    work = [matmul(count, 4096, 4096) for count in _ROWS]
    lines = {
        "bytes": (palette.orange, [1e6 * one.bytes / roof.bandwidth for one in work]),
        "math": (palette.blue, [1e6 * one.flops / roof.peak_flops for one in work]),
    }
    at = _ROWS.index(rows)
    floors = {name: levels[at] for name, (_, levels) in lines.items()}
    longer = max(floors, key=lambda name: floors[name])
    fig, axes = figure(width=8.0, height=3.4)
    for name, (colour, levels) in lines.items():
        axes.plot(_ROWS, levels, color=colour, lw=1.2, alpha=0.6)
        axes.plot(_ROWS[: at + 1], levels[: at + 1], color=colour, lw=3.5 if name == longer else 2)
        axes.plot([rows], [levels[at]], "o", color=colour, ms=9 if name == longer else 6)
        axes.text(_ROWS[-1] * 1.25, levels[-1], name, color=colour, weight="bold", va="center")
        note = {"ha": "left" if at == 0 else "center", "va": "bottom" if name == longer else "top"}
        axes.annotate(
            f"{levels[at]:.3g} µs",
            (rows, levels[at]),
            (0, 9 if name == longer else -9),
            **note,
            textcoords="offset points",
            color=colour,
        )
    axes.set(xscale="log", yscale="log", xlim=(0.7, 12000), ylim=(0.01, 600))
    axes.set_xticks([1, 4, 16, 64, 256, 1024, 4096], ["1", "4", "16", "64", "256", "1,024", "4,096"])
    axes.minorticks_off()
    axes.set(xlabel="rows of x", ylabel="µs at an H100's rates")
    plural = "s" * (rows > 1)
    axes.set_title(f"{rows:,} row{plural}: {work[at].intensity:,.0f} FLOP per byte, limited by {longer}")
    return fig


def draw_roofline(machine: str, dtype: str, operation: str, log2_tokens: int) -> "Figure":
    """Draw an operation below the roof of a machine, other machines in grey, and its other sizes as dots."""
    fig, axes = figure(width=8.6, height=4.4)
    try:
        roof = Roofline(accelerator(machine), dtype)
    except LookupError as reason:
        axes.text(0.5, 0.5, str(reason).replace("; ", ";\n"), ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return fig
    for other in [*(name for name in MACHINES if dtype in accelerator(name).rates), machine]:
        style = {"color": palette.ink} if other == machine else {"color": palette.grey, "lw": 1, "alpha": 0.4}
        _draw_roof(axes, Roofline(accelerator(other), dtype), (0.1, 1e5), **style)
    axes.axvline(roof.ridge_point, color=palette.grey, ls=":", lw=1.2)
    axes.text(roof.ridge_point * 1.1, 0.12, f"ridge {roof.ridge_point:.0f} FLOP per byte")
    axes.text(9e4, roof.peak_flops / 1e12 * 1.15, machine, ha="right", va="bottom", weight="bold")
    sizes = [OPERATIONS[operation](2**power, BYTES[dtype]) for power in range(15)]
    axes.plot(
        [work.intensity for work in sizes],
        [roof.attainable(work) / 1e12 for work in sizes],
        ".",
        color=palette.sky,
        ms=6,
    )
    tokens = 2**log2_tokens
    work = OPERATIONS[operation](tokens, BYTES[dtype])
    bound = roof.bound(work)
    seconds = roof.time_floor(work)
    axes.plot(work.intensity, roof.attainable(work) / 1e12, "o", color=_COLOURS[bound], ms=11, zorder=4)
    took = f"{seconds * 1e6:.3g} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
    share = f"{100 * roof.attainable(work) / roof.peak_flops:.3g}% of peak, at least {took}"
    axes.set(xscale="log", yscale="log", xlim=(0.1, 1e5), ylim=(0.08, 6000))
    axes.set(xlabel="FLOP per byte", ylabel="TFLOP/s within reach")
    axes.set_title(
        f"{operation}, {tokens:,} tokens on {machine} in {dtype.upper()}\n"
        f"{work.intensity:.3g} FLOP per byte: {bound}-bound, {share}"
    )
    return fig


def _draw_roof(axes: "Axes", roof: Roofline, ends: tuple[float, float], scale: float = 1e12, **style: Any) -> None:
    corners = sorted((ends[0], min(max(roof.ridge_point, ends[0]), ends[1]), ends[1]))
    axes.plot(corners, [roof.attainable(corner) / scale for corner in corners], **style)


def draw_measured(roof: Roofline, points: dict[str, tuple[Work, float]]) -> "Figure":
    """Draw operations below the roof of this machine, each at the rate that it reached.

    `points` has the work and the seconds of each.
    """
    fig, axes = figure(width=8.6, height=4.2)
    intensities = [work.intensity for work, _ in points.values()]
    ends = (min(intensities) / 8, max(intensities) * 4)
    _draw_roof(axes, roof, ends, 1e9, color=palette.ink)
    labels = []
    for name, (work, seconds) in points.items():
        reached = work.flops / seconds / 1e9
        share = 100 * roof.time_floor(work) / seconds
        colour = _COLOURS[roof.bound(work)]
        axes.plot([work.intensity] * 2, [reached, roof.attainable(work) / 1e9], ":", color=colour, lw=1.2)
        axes.plot(work.intensity, reached, "o", color=colour, ms=9)
        labels.append((f"{name}: {share:.0f}%", (work.intensity, reached), share > 100))
    axes.text(roof.ridge_point, roof.peak_flops / 1e9 * 1.15, f"ridge {roof.ridge_point:.3g} FLOP per byte")
    lowest = min(work.flops / seconds / 1e9 for work, seconds in points.values())
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=(lowest / 4, roof.peak_flops / 1e9 * 2.5))
    axes.set(xlabel="FLOP per byte", ylabel="GFLOP/s", title="Measured here: how much of the time the roof explains")
    _label_points(axes, labels)
    return fig


def _label_points(axes: "Axes", labels: Sequence[tuple[str, tuple[float, float], bool]]) -> None:
    """Write each label (text, point, whether it stands on the left) beside its point.

    A label that would cross the right edge stands on the left, too. One that would cover a point or another label is
    moved down.
    """
    to_points = 72 / axes.figure.dpi
    spots = {text: axes.transData.transform(at) * to_points for text, at, _ in labels}
    right = axes.transAxes.transform((1.0, 0.0))[0] * to_points
    taken = [(x - 6, x + 6, y) for x, y in spots.values()]
    for text, at, left in sorted(labels, key=lambda label: -label[1][1]):
        (x, y), width, drop = spots[text], 6 * len(text), 3
        away = -10 - width if left or x + 10 + width > right else 10
        while any(
            x + away < end and start < x + away + width and abs(y - drop - level) < 13 for start, end, level in taken
        ):
            drop += 3
        taken.append((x + away, x + away + width, y - drop))
        edge = "left" if away > 0 else "right"
        offset = (10 if away > 0 else -10, -drop)
        axes.annotate(text, at, offset, textcoords="offset points", size=10, ha=edge, va="center")


def draw_judged(passes: dict[str, Sequence[Judged]]) -> "Figure":
    """Draw for each span its wall time as an outline, its busy time pale, and its floor in the verdict's colour.

    Each pass has a time axis of its own.
    """
    counts = [len(rows) for rows in passes.values()]
    fig, panels = figure(
        len(passes),
        1,
        width=8.6,
        height=0.6 + sum(0.36 * count + 0.62 for count in counts),
        squeeze=False,
        gridspec_kw={"height_ratios": counts},
    )
    for axes, (title, rows) in zip(panels[:, 0], passes.items(), strict=True):
        longest = max(row.span.wall_us for row in rows)
        scale, unit = (1e3, "ms") if longest >= 1e3 else (1.0, "µs")
        for place, row in enumerate(rows):
            _draw_span(axes, place, row, scale)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.set(xlim=(0, 1.45 * longest / scale), ylim=(len(rows) - 0.45, -0.6), title=title)
        axes.set_xlabel(unit, labelpad=0)
    panels[-1, 0].set_xlabel(f"{unit} (outline: wall time, pale: busy time, solid: floor)")
    return fig


def _draw_span(axes: "Axes", place: int, row: Judged, scale: float) -> None:
    colour = _COLOURS.get(row.verdict.bound, palette.ink)
    span = row.span
    axes.barh([place], [span.wall_us / scale], height=0.74, color="none", edgecolor=palette.grey, lw=1)
    axes.barh([place], [span.busy_us / scale], height=0.74, color=colour, alpha=0.3, lw=0)
    axes.barh([place], [row.verdict.floor_us / scale], height=0.32, color=colour, lw=0)
    end = max(span.wall_us, row.verdict.floor_us) / scale
    text = f" {row.verdict.bound}: explains {row.verdict.explains:.2f}"
    axes.text(end, place, text, va="center", color=colour, weight="bold", size=10)


def draw_held(passes: dict[str, tuple[str, Any]]) -> "Figure":
    """Draw the memory that each pass holds over time, and its peak. `passes` maps a name to a colour and a profile."""
    fig, panels = figure(len(passes), 1, width=8.6, height=1.9 * len(passes), squeeze=False, sharex=True, sharey=True)
    for axes, (name, (colour, profile)) in zip(panels[:, 0], passes.items(), strict=True):
        times = [0.0, *(change.time_us / 1e3 for change in profile.allocations)]
        levels = [level / 1e6 for level in accumulate((change.bytes for change in profile.allocations), initial=0)]
        axes.fill_between(times, levels, step="post", color=colour, alpha=0.25, lw=0)
        axes.step(times, levels, where="post", color=colour, lw=1.2)
        at = int(np.argmax(levels))
        axes.plot(times[at], levels[at], "o", color=colour)
        label = f"{name}: {levels[at]:.0f} MB, first reached after {times[at]:.0f} ms"
        axes.text(0.99, 0.85, label, transform=axes.transAxes, ha="right", color=colour, weight="bold")
        axes.set(ylabel="MB held", ylim=(0, None), xlim=(0, None))
    panels[0, 0].set_title("Memory of the recorded passes, and where it peaks")
    panels[-1, 0].set_xlabel("ms")
    return fig


def draw_repairs(
    programs: dict[str, tuple[Sequence[Round], Sequence[Round]]], marks: dict[str, tuple[str, float]] | None = None
) -> "Figure":
    """Draw the wall time after each round of repairs, and the reference's as a vertical stroke.

    `programs` maps a title to the reader's rounds and the reference's, and `marks` maps a title to one more time to
    compare with.
    """
    rows = [max(len(own), len(reference)) for own, reference in programs.values()]
    fig, panels = figure(
        len(rows),
        1,
        width=8.6,
        height=0.9 + sum(0.42 * count + 0.75 for count in rows),
        squeeze=False,
        gridspec_kw={"height_ratios": rows},
    )
    for axes, (title, (own, reference)) in zip(panels[:, 0], programs.items(), strict=True):
        longest = max(one.wall_us for one in (*own, *reference)) / 1e3
        for place, one in enumerate(own):
            colour = _COLOURS.get(one.bound, palette.ink)
            axes.barh([place], [one.wall_us / 1e3], height=0.62, color=colour, alpha=0.75, lw=0)
            text = f"  {one.wall_us / 1e3:.2f} ms, limited by: {one.bound}"
            axes.text(one.wall_us / 1e3, place, text, va="center", size=10)
        for place, one in enumerate(reference):
            axes.plot([one.wall_us / 1e3] * 2, [place - 0.42, place + 0.42], color=palette.ink, lw=2.5)
        if marks and title in marks:
            name, level = marks[title]
            axes.axvline(level / 1e3, color=palette.green, ls="--", lw=1.4)
            axes.text(level / 1e3, -0.75, f" {name}: {level / 1e3:.2f} ms", color=palette.green, size=10, va="center")
        count = max(len(own), len(reference))
        names = [own[place].fix if place < len(own) else "(stopped)" for place in range(count)]
        axes.set_yticks(range(count), names)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.set(xlim=(0, 1.5 * longest), ylim=(count - 0.4, -1.05 if marks and title in marks else -0.6), title=title)
    panels[-1, 0].set_xlabel("ms of wall time; vertical strokes: the reference")
    return fig
