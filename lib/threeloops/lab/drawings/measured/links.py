"""All-reduces of a node, measured by NVIDIA, beside the line α + s/β of lab 08."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from threeloops.figures import figure, palette
from threeloops.hardware.measured import measured
from threeloops.lab.drawings.measured.series import Series, source
from threeloops.units import readable_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_line", "engine", "errors", "halves", "nccl", "wins_up_to"]

_RANKS = 8
_SIZES = [2**power for power in range(9, 30)]
"""Bytes of the picture, from 512 B to 512 MiB."""


def nccl(device: str = "H100 SXM", operation: str = "all_reduce") -> Series:
    """Return the times of a collective of NCCL on eight GPUs of a node, in 16 bits, by bytes of the whole tensor."""
    table = measured("nccl").where(device=device, op_name=operation, num_gpus=_RANKS, nccl_dtype="half")
    return Series.of(table["bytes"], table["seconds"], source(f"8 × {device}", str(table["tool"][0])))


def engine(device: str = "H100 SXM", tool: str = "vllm/0.24.0") -> Series:
    """Return the times of an inference engine's own all-reduce on the same GPUs, in a CUDA graph."""
    table = measured("custom_all_reduce").where(device=device, tool=tool, num_gpus=_RANKS)
    table = table.where(kernel_source="vLLM_custom_graph")
    return Series.of(table["bytes"], table["seconds"], source(f"8 × {device}", tool))


def halves(times: Series) -> tuple[Series, Series]:
    """Return every second size, from the smallest on, and the sizes between them."""
    first, second = (Series(times.sizes[start::2], times.seconds[start::2], times.source) for start in (0, 1))
    return first, second


def errors(times: Series, alpha: float, beta: float) -> list[float]:
    """Return by which share of each time the line α + s/β is too slow (above 0) or too fast."""
    return [(alpha + size / beta) / second - 1 for size, second in zip(times.sizes, times.seconds, strict=True)]


def wins_up_to(one: Series, other: Series) -> int:
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
    fitted: Series,
    judged: Series,
    line: tuple[float, float],
    rings: Mapping[str, Mapping[int, float]],
    own: Series | None = None,
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
