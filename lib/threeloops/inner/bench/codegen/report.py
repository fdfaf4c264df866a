"""Showing what the inspector found: a table for the terminal, and pictures of access widths and occupancy."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from threeloops.inner.bench.codegen.generated_code import Code
from threeloops.palette import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_COLOURS = {
    8: palette.vermillion,
    16: palette.orange,
    32: palette.yellow,
    64: palette.sky,
    96: "#3f8fd0",
    128: palette.blue,
    256: "#00405f",
}
"""From few bits an access (warm) to many (dark): the palette, and darker steps of its blue."""
RESIDENT, ABSENT, INK = palette.blue, "#e4e4e4", palette.ink

HEADER = ("kernel", "target", "warps", "registers", "spilled", "shared", "occupancy", "loads", "stores", "tensor cores")


def report(codes: Sequence[Code]) -> str:
    """One line a kernel and target. Widths of global accesses in bits, "4×128" for four instructions; spills in bytes a
    thread; what a kernel lacks to run at all stands below the table."""
    if not codes:
        return "no code: nothing was launched"
    lines = [HEADER, *(row(code) for code in codes)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    text.insert(1, "  ".join("─" * width for width in widths))
    notes = [f"{code.name} does not fit {code.target}: {'; '.join(code.misfits)}" for code in codes if not code.fits]
    return "\n".join([*text, *notes])


def row(code: Code) -> tuple[str, ...]:
    stages = f", {code.options['num_stages']} stages" if code.tensor_core_instructions else ""
    return (
        code.name,
        code.target,
        f"{code.options['num_warps']}{stages}",
        str(code.registers),
        f"{code.spilled_bytes} B" if code.spilled_bytes else "none",
        f"{kilobytes(code.shared_bytes)} of {kilobytes(code.shared_limit)}" + ("" if code.fits else " !"),
        str(code.occupancy),
        accesses(code.loads) + (f", {code.tma} TMA" if code.tma else ""),
        accesses(code.stores),
        f"{code.tensor_core_instructions} {code.tensor_cores}" if code.tensor_cores else "none",
    )


def kilobytes(size: int) -> str:
    return f"{size / 1024:.4g} KB" if size >= 1024 else f"{size} B"


def labels(codes: Sequence[Code]) -> list[str]:
    """What tells one code from another: the target, the kernel where there are several, options where they differ."""
    several = len({code.name for code in codes}) > 1
    made = [f"{code.name}, {code.target}" if several else code.target for code in codes]
    options = [
        ", ".join(f"{value} {name.removeprefix('num_')}" for name, value in code.options.items()) for code in codes
    ]
    return [f"{label}, {said}" if made.count(label) > 1 else label for label, said in zip(made, options, strict=True)]


def accesses(counts: Mapping[int, int]) -> str:
    """{32: 1, 128: 4} → "4×128 1×32"."""
    return " ".join(f"{number}×{bits}" for bits, number in sorted(counts.items(), reverse=True)) or "none"


def plot_code(
    codes: Sequence[Code], ax: "Axes | None" = None, show: Literal["loads", "stores", "occupancy"] = "loads"
) -> "Axes":
    """One bar a kernel and target, the first on top.

    "loads" and "stores": the instructions that access global memory, by the bits that one thread moves; "occupancy":
    the warps resident on a multiprocessor of those it can hold, with what limits them.
    """
    if not codes:
        raise ValueError("codes = []: expected at least one kernel's code to draw")
    if show not in ("loads", "stores", "occupancy"):
        raise ValueError(f'show = {show!r}: expected "loads", "stores" or "occupancy"')
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(7.5, 1.2 + 0.4 * len(codes)), layout="constrained").subplots()
    if show == "occupancy":
        draw_occupancy(codes, ax)
    else:
        draw_widths([code.loads if show == "loads" else code.stores for code in codes], ax)
        ax.set_xlabel(f"{show[:-1]} instructions on global memory, by bits a thread")
    ax.set_yticks(range(len(codes)), labels(codes))
    ax.set_ylim(len(codes) - 0.5, -0.5)
    if len({code.name for code in codes}) == 1:
        ax.set_title(codes[0].name, loc="left", fontsize=10)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.grid(axis="x", color="0.9", linewidth=0.8)
    ax.grid(visible=False, axis="y")
    ax.set_axisbelow(True)
    return ax


def draw_widths(accessed: Sequence[Mapping[int, int]], ax: "Axes") -> None:
    """Stacked bars, narrow accesses first, each piece labelled with its number where there is room."""
    longest = max((sum(counts.values()) for counts in accessed), default=0) or 1
    for bits, colour in WIDTH_COLOURS.items():
        numbers = [counts.get(bits, 0) for counts in accessed]
        if not any(numbers):
            continue
        lefts = [sum(number for narrower, number in counts.items() if narrower < bits) for counts in accessed]
        ax.barh(range(len(accessed)), numbers, left=lefts, height=0.62, color=colour, label=f"{bits}")
        for place, (left, number) in enumerate(zip(lefts, numbers, strict=True)):
            if number > 0.04 * longest:
                dark = bits >= 96 or bits == 8
                ax.text(left + number / 2, place, str(number), color="white" if dark else INK, ha="center", va="center")
    for place, counts in enumerate(accessed):
        if not counts:
            ax.text(0.01 * longest, place, "none", color="0.4", va="center")
    ax.set_xlim(0, longest * 1.02)
    ax.legend(title="bits", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)


def draw_occupancy(codes: Sequence[Code], ax: "Axes") -> None:
    """Resident warps in percent of the most, so that devices which hold different numbers compare."""
    fractions = [100 * code.occupancy.fraction for code in codes]
    ax.barh(range(len(codes)), [100] * len(codes), height=0.62, color=ABSENT)
    ax.barh(range(len(codes)), fractions, height=0.62, color=RESIDENT)
    for place, (code, fraction) in enumerate(zip(codes, fractions, strict=True)):
        inside = fraction > 55
        warps = f"{code.occupancy.resident_warps} warps" if code.fits else "does not fit"
        text = f"{warps}: {code.occupancy.limited_by}"
        at = fraction - 1 if inside else fraction + 1
        ax.text(
            at, place, text, color="white" if inside else INK, ha="right" if inside else "left", va="center", fontsize=9
        )
    ax.set_xlim(0, 100)
    ax.set_xlabel("resident warps, percent of what a multiprocessor holds")
