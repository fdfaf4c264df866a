"""All-reduces of a node, measured by NVIDIA, beside the line α + s/β of lab 08."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from threeloops.figures import figure, palette
from threeloops.hardware.measured import MEASURED_BY, measured
from threeloops.units import readable_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Times", "draw_line", "engine", "errors", "halves", "nccl", "wins_up_to"]

_RANKS = 8
_SIZES = [2**power for power in range(9, 30)]
"""Bytes of the picture, from 512 B to 512 MiB."""


@dataclass(frozen=True)
class Times:
    """Seconds by size in bytes, in order of the sizes, and the device and tool that they come from."""

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    source: str


def nccl(device: str = "H100 SXM") -> Times:
    """Return the times of NCCL's all-reduce on eight GPUs of a node, in 16 bits."""
    table = measured("nccl").where(device=device, op_name="all_reduce", num_gpus=_RANKS, nccl_dtype="half")
    return _times(table["bytes"], table["seconds"], f"8 × {device}, {str(table['tool'][0]).upper()}, {MEASURED_BY}")


def engine(device: str = "H100 SXM", tool: str = "vllm/0.24.0") -> Times:
    """Return the times of an inference engine's own all-reduce on the same GPUs, in a CUDA graph."""
    table = measured("custom_all_reduce").where(device=device, tool=tool, num_gpus=_RANKS)
    table = table.where(kernel_source="vLLM_custom_graph")
    return _times(table["bytes"], table["seconds"], f"8 × {device}, {tool.replace('vllm/', 'vLLM ')}, {MEASURED_BY}")


def _times(sizes: np.ndarray, seconds: np.ndarray, source: str) -> Times:
    order = np.argsort(sizes)
    return Times(tuple(map(int, sizes[order])), tuple(map(float, seconds[order])), source)


def halves(times: Times) -> tuple[Times, Times]:
    """Return every second size, from the smallest on, and the sizes between them."""
    first, second = (Times(times.sizes[start::2], times.seconds[start::2], times.source) for start in (0, 1))
    return first, second


def errors(times: Times, alpha: float, beta: float) -> list[float]:
    """Return by which share of each time the line α + s/β is too slow (above 0) or too fast."""
    return [(alpha + size / beta) / second - 1 for size, second in zip(times.sizes, times.seconds, strict=True)]


def wins_up_to(one: Times, other: Times) -> int:
    """Return the largest size up to which `one` is faster at every size that both have. 0 if there is none."""
    faster = {
        size: second < other.seconds[other.sizes.index(size)]
        for size, second in zip(one.sizes, one.seconds, strict=True)
        if size in other.sizes
    }
    largest = 0
    for size, wins in faster.items():
        if not wins:
            break
        largest = size
    return largest


def draw_line(
    fitted: Times,
    judged: Times,
    line: tuple[float, float],
    rings: Mapping[str, Mapping[int, float]],
    own: Times | None = None,
) -> "Figure":
    """Draw measured times, the line α + s/β that was fitted to the full dots, and rings of the virtual cluster.

    `rings` has seconds by size for each kind of ring; the first is a dashed line, and others are crosses. `own` are the
    times of an engine's all-reduce.
    """
    fig, axes = figure(width=9.5, height=4.2)
    alpha, beta = line
    axes.plot(_SIZES, [1e6 * (alpha + size / beta) for size in _SIZES], color=palette.blue, lw=1.8, label="α + s/β")
    for place, (name, seconds) in enumerate(rings.items()):
        style = {"ls": "none", "marker": "x", "ms": 8} if place else {"ls": "--", "lw": 1.4}
        axes.plot(list(seconds), [1e6 * second for second in seconds.values()], color=palette.grey, **style, label=name)
    for times, fill, name in ((fitted, palette.orange, "NCCL, fitted"), (judged, "none", "NCCL, judges the line")):
        dots = {"mec": palette.orange, "mfc": fill, "mew": 1.6, "ms": 7, "ls": "none", "marker": "o"}
        axes.plot(times.sizes, [1e6 * second for second in times.seconds], **dots, label=name)
    if own is not None:
        inside = [place for place, size in enumerate(own.sizes) if _SIZES[0] <= size <= _SIZES[-1]]
        axes.plot(
            [own.sizes[place] for place in inside],
            [1e6 * own.seconds[place] for place in inside],
            "s-",
            color=palette.green,
            lw=1,
            ms=6,
            label="vLLM's own",
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(_SIZES[::4], [readable_bytes(size) for size in _SIZES[::4]])
    axes.set(xlim=(_SIZES[0] / 1.5, _SIZES[-1] * 1.5), xlabel="size of the tensor", ylabel="µs")
    axes.legend(loc="upper left")
    axes.set_title("An all-reduce on eight H100s, measured by NVIDIA, and what a line makes of it")
    return fig
