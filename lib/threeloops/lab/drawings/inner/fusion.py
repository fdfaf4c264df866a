"""Fusion of kernels: trips to memory, registers and spills, and a small model that trains with fused kernels."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from threeloops.figures import figure, legend_above, name_bar, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_moments", "draw_registers", "draw_training", "draw_trips"]

_READ = palette.sky
_WRITTEN = palette.orange


def draw_trips(title: str = "") -> "Figure":
    """Three kernels with trips to memory between them, above one kernel that makes a single trip."""
    fig, axes = figure(width=9.5, height=3.2)
    _draw_kernels(axes, 2.1, {1.2: "add", 4.4: "gelu", 7.6: "dropout"})
    _draw_kernels(axes, 0.5, {4.4: "add, gelu, dropout"})
    axes.set(xlim=(0.2, 12.6), ylim=(-0.6, 2.6), xticks=[], yticks=[], title=title)
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    return fig


def _draw_kernels(axes: "Axes", level: float, names: Mapping[float, str]) -> None:
    """Draw kernels by their left edge, each with an arrow from memory and one back to it."""
    for left, name in names.items():
        axes.barh([level], [2.0], left=left, height=0.5, color="none", edgecolor=palette.ink)
        axes.text(left + 1.0, level, name, ha="center", va="center")
        for start, end, colour in (
            ((left - 0.45, level - 0.65), (left + 0.15, level - 0.26), _READ),
            ((left + 1.85, level - 0.26), (left + 2.45, level - 0.65), _WRITTEN),
        ):
            axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 3})
        axes.text(left + 0.1, level - 0.45, "reads", ha="left", va="center", fontsize="small")
        axes.text(left + 1.9, level - 0.45, "writes", ha="right", va="center", fontsize="small")
    axes.barh([level - 0.75], [10.6], left=0.4, height=0.2, color=palette.grey)
    axes.text(11.15, level - 0.75, "memory", va="center")
    axes.text(11.15, level, f"{len(names)} kernel{'s' * (len(names) > 1)}", va="center")


def draw_moments(trips: Sequence[tuple[str, str, int, int]], shown: int, bandwidth: float) -> "Figure":
    """The first `shown` kernels, one after the other, in two rows: eager ones above, the fused one below.

    Args:
        trips: for each kernel its row ("eager" or "fused"), its name, and the bytes that it reads and writes.
        shown: how many of them have run.
        bandwidth: of memory, in bytes/s.
    """
    fig, axes = figure(width=9.5, height=2.6)
    ends = {"eager": 0.0, "fused": 0.0}
    whole = {row: sum(read + written for place, _, read, written in trips if place == row) for row in ends}
    for row, name, read, written in trips[:shown]:
        level = 1.0 if row == "eager" else 0.0
        start = ends[row]
        for amount, colour in ((read, _READ), (written, _WRITTEN)):
            length = amount / bandwidth * 1e6
            axes.barh([level], [length], left=ends[row], height=0.5, color=colour, edgecolor="white")
            ends[row] += length
        axes.text((start + ends[row]) / 2, level + 0.3, name, ha="center", va="bottom", fontsize=10)
    for row, level in (("eager", 1.0), ("fused", 0.0)):
        if ends[row]:
            axes.text(ends[row] + 2, level, f"{ends[row]:.0f} µs", va="center")
    longest = max(whole.values()) / bandwidth * 1e6
    axes.set(
        xlim=(0, 1.1 * longest),
        ylim=(-0.4, 1.7),
        yticks=[0, 1],
        yticklabels=["fused", "eager"],
        xlabel=f"µs at {bandwidth / 1e12:.3g} TB/s (model)",
    )
    axes.grid(axis="y", visible=False)
    legend_above(axes, {"reads": _READ, "writes": _WRITTEN})
    return fig


def draw_registers(
    codes: Mapping[int, Any], columns: int, arrays: Mapping[str, int], limit: int = 255, title: str = ""
) -> "Figure":
    """The registers per thread of a kernel that holds a row, compiled for several numbers of warps, and what spills.

    Args:
        codes: by the number of warps, code with `registers` and `spilled_bytes` per thread.
        columns: the length of the row.
        arrays: one or two numbers of rows that a program keeps, by their label. A line marks what they alone need.
        limit: the most registers of a thread.
    """
    fig, axes = figure(width=9.5, height=0.9 + 0.6 * len(codes))
    needs = {warps: [count * columns / (32 * warps) for count in arrays.values()] for warps in codes}
    longest = max([limit, *(need for row in needs.values() for need in row)])
    colours = (palette.ink, palette.purple)
    for level, (warps, code) in enumerate(codes.items()):
        spilled = code.spilled_bytes // 4
        axes.barh([level], [code.registers], height=0.42, color=palette.sky)
        axes.barh([level], [spilled], left=[code.registers], height=0.42, color=palette.vermillion)
        for need, colour in zip(needs[warps], colours, strict=False):
            axes.plot([need, need], [level - 0.34, level + 0.34], color=colour, lw=2)
        text = f"{code.registers}, {spilled} spilled" if spilled else f"{code.registers}, none spilled"
        axes.text(max(code.registers + spilled, *needs[warps]) + 5, level, text, va="center", fontsize=10)
    axes.axvline(limit, color=palette.grey, ls="--", lw=1.2, zorder=0)
    axes.set_yticks(range(len(codes)), [f"{w} warp{'s' * (w > 1)}, {32 * w} threads" for w in codes])
    axes.set(xlim=(0, 1.22 * longest), ylim=(len(codes) - 0.5, -0.9), xlabel="32-bit registers per thread", title=title)
    axes.text(limit + 3, -0.62, f"limit: {limit}", fontsize=10, va="center")
    axes.grid(axis="y", visible=False)
    handles = {"in registers": palette.sky, "spilled to memory": palette.vermillion}
    handles |= dict(zip(arrays, colours, strict=False))
    _legend_below(axes, handles)
    return fig


def _legend_below(axes: "Axes", colours: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=name) for name, colour in colours.items()]
    axes.legend(handles=handles, ncols=len(handles), loc="upper center", bbox_to_anchor=(0.4, -0.22), handlelength=1.0)


def draw_training(losses: Mapping[str, Sequence[float]], moved: Mapping[str, Mapping[str, float]]) -> "Figure":
    """Loss curves that should lie on each other, and the bytes of a training step, by their kind.

    Args:
        losses: by name, one loss per step; the first is drawn as a broad line, the others as points.
        moved: by the same names, bytes by kind.
    """
    fig, (left, right) = figure(1, 2, width=10.5, height=3.2, width_ratios=(1, 1.25))
    shades = (palette.grey, palette.vermillion, palette.green)
    for values, shade in zip(losses.values(), shades, strict=False):
        broad = shade == palette.grey
        left.plot(values, "-" if broad else "o", color=shade, lw=6 if broad else 0, ms=4, alpha=0.5 if broad else 1)
    for level, (name, shade) in enumerate(zip(losses, shades, strict=False)):  # a loss falls: the corner is free
        left.text(0.98, 0.95 - 0.11 * level, name, color=shade, ha="right", va="top", transform=left.transAxes)
    left.set(xlabel="step", ylabel="loss")
    kinds = list(dict.fromkeys(kind for amounts in moved.values() for kind in amounts))
    for level, amounts in enumerate(moved.values()):
        end = 0.0
        for kind, colour in zip(kinds, (palette.sky, palette.orange, palette.green), strict=False):
            amount = amounts.get(kind, 0.0) / 2**10
            right.barh([level], [amount], left=[end], height=0.5, color=colour)
            if amount:
                name_bar(right, end + amount / 2, level, f"{amount:,.0f}")
            end += amount
        right.text(end, level, f" {end:,.0f}", va="center")
    right.set_yticks(range(len(moved)), list(moved))
    most = max(sum(amounts.values()) for amounts in moved.values()) / 2**10
    right.set(xlim=(0, 1.15 * most), ylim=(len(moved) - 0.5, -0.5), xlabel="KiB moved in one step")
    right.grid(axis="y", visible=False)
    legend_above(right, dict(zip(kinds, (palette.sky, palette.orange, palette.green), strict=False)))
    return fig
