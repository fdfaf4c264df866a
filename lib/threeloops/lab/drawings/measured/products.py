"""Products of matrices below the roof of their GPU, measured by NVIDIA, in bf16 and in fp8."""

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from threeloops.figures import figure, palette
from threeloops.hardware import accelerator
from threeloops.hardware.measured import measured
from threeloops.inner.costs import matmul
from threeloops.inner.roofline import Roofline
from threeloops.lab.drawings.measured.series import source

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "FP8_DEVICES", "SIDES", "draw_below_roof", "draw_fp8", "fp8_speedups", "product_seconds",
    "product_source", "share_of_roof",
]  # fmt: skip

_DEVICES = ("A100 SXM 80GB", "H100 SXM", "B200")
FP8_DEVICES = ("H100 SXM", "B200", "L40S")
SIDES = (1024, 4096, 8192)
_TOOL = "trtllm"
_ENDS = (0.5, 5000.0)
_COLOURS = dict(zip(_DEVICES, (palette.green, palette.blue, palette.purple), strict=True))


@cache
def product_seconds(device: str, columns: int, depth: int, dtype: str = "bfloat16") -> dict[int, float]:
    """Return the seconds of (rows, depth) @ (depth, columns) by the number of rows, from the fewest on.

    With dtype "fp8" the time includes the kernel that quantizes the rows. Raises LookupError if it was not measured.
    """
    table = measured("gemm").where(device=device, gemm_dtype=dtype, n=columns, k=depth)
    table = table.rows(np.char.startswith(table["tool"], _TOOL))
    pairs = sorted(zip(table["m"], table["seconds"], strict=True))
    return {int(rows): float(seconds) for rows, seconds in pairs}


def product_source(device: str) -> str:
    """Return the device, the tool and who measured."""
    tools = measured("gemm").where(device=device)["tool"]
    return source(device, next(str(tool) for tool in tools if str(tool).startswith(_TOOL)))


def share_of_roof(device: str, rows: int, columns: int, depth: int) -> float:
    """Return which share of the FLOP/s that the roofs allow a product in bf16 reached."""
    seconds = product_seconds(device, columns, depth)[rows]
    return Roofline(accelerator(device), "bf16").time_floor(matmul(rows, depth, columns)) / seconds


def draw_below_roof(device: str, side: int) -> "Figure":
    """Draw the products with weights of side × side below the roof of a GPU, a dot per number of rows.

    The other GPUs have thin lines and small dots.
    """
    fig, axes = figure(width=8.6, height=4.6)
    for name in sorted(_DEVICES, key=lambda name: name == device):
        roof = Roofline(accelerator(name), "bf16")
        chosen = name == device
        colour = _COLOURS[name]
        corners = (_ENDS[0], roof.ridge_point, _ENDS[1])
        heights = [roof.attainable(corner) / 1e12 for corner in corners]
        axes.plot(corners, heights, color=colour, lw=2.4 if chosen else 1, alpha=1 if chosen else 0.5)
        axes.text(_ENDS[1] * 1.1, heights[-1], name, color=colour, va="center", weight="bold" if chosen else "normal")
        dots = product_seconds(name, side, side)
        work = {rows: matmul(rows, side, side) for rows in dots}
        across = [work[rows].intensity for rows in dots]
        reached = [work[rows].flops / seconds / 1e12 for rows, seconds in dots.items()]
        axes.plot(across, reached, "o", color=colour, ms=8 if chosen else 4, alpha=1 if chosen else 0.5)
        if chosen:
            for rows, x, y in zip(dots, across, reached, strict=True):
                if rows in (1, 16, 128, 1024):
                    label = f"{rows:,} row{'s' * (rows > 1)}: {100 * share_of_roof(name, rows, side, side):.0f}%"
                    axes.annotate(label, (x, y), (9, -11), textcoords="offset points", color=palette.ink, size=10)
    axes.set(xscale="log", yscale="log", xlim=_ENDS, ylim=(0.1, 5000))
    axes.set(xlabel="FLOP per byte", ylabel="TFLOP/s, measured by NVIDIA")
    axes.set_title(f"x @ W in bf16, W of {side:,} × {side:,} on {device}, and its share of the roof")
    return fig


def fp8_speedups(device: str, side: int) -> dict[int, float]:
    """Return how many times faster than in bf16 a product with weights of side × side is in fp8, by rows."""
    fp8 = product_seconds(device, side, side, "fp8")
    return {rows: seconds / fp8[rows] for rows, seconds in product_seconds(device, side, side).items() if rows in fp8}


def draw_fp8(device: str) -> "Figure":
    """Draw how many times faster products are in fp8 than in bf16, a line per size of the weights."""
    fig, axes = figure(width=8.6, height=3.8)
    gpu = accelerator(device)
    peak = gpu.rate("fp8") / gpu.rate("bf16")
    for level, name, edge in ((peak, f"peak: {peak:.3g}×", "top"), (1.0, "as fast as bf16", "bottom")):
        axes.axhline(level, color=palette.grey, lw=1.2, ls="--")
        axes.annotate(
            name, (1, level), (0, -3 if edge == "top" else 3), textcoords="offset points", color=palette.grey, va=edge
        )
    for side, colour in zip(SIDES, (palette.vermillion, palette.blue, palette.green), strict=True):
        speedups = fp8_speedups(device, side)
        axes.plot(list(speedups), list(speedups.values()), "o-", color=colour, lw=1.5)
        last = max(speedups)
        label = f"W of {side:,} × {side:,}"
        axes.annotate(label, (last, speedups[last]), (8, 0), textcoords="offset points", color=colour, va="center")
    axes.set(xscale="log", xlim=(0.8, 20000), ylim=(0, None))
    ticks = [4**power for power in range(8)]
    axes.set_xticks(ticks, [f"{rows:,}" for rows in ticks])
    axes.minorticks_off()
    axes.set(xlabel="rows of x", ylabel="times faster, quantizing x included")
    axes.set_title(f"x @ W in fp8 against bf16 on {device}, measured by NVIDIA")
    return fig
