"""All-reduces in pictures: a ring step by step, with the data in it (`animate(draw_ring, ring_steps(4))`), how busy
ports are, and which algorithm is the fastest for each size.

The ring is that of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009),
shifted by one chunk, so that rank r ends the reduce-scatter with chunk r, as in torch.distributed. In step k rank r
sends chunk r − 1 − k to rank r + 1, which adds it. In step k of the all-gather it sends chunk r − k, which replaces the
receiver's chunk.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from threeloops.figures import figure, palette
from threeloops.training.cluster.cluster import Run
from threeloops.units import readable_bytes

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["REFERENCE", "RingStep", "draw_choices", "draw_ports", "draw_ring", "ring_steps"]

_MOST_RANKS = 8
_TINT = 0.16
"""Opacity of a sum of two; it grows with the number of terms, and stays so light that the page's ink can be read."""


@dataclass(frozen=True)
class RingStep:
    """All ranks after a step. `sent` holds the chunk that each rank sent in it; none in the first frame."""

    phase: str
    values: tuple[tuple[float, ...], ...]
    """The values by rank and chunk."""
    terms: tuple[tuple[int, ...], ...]
    """How many ranks' values are summed in each."""
    sent: tuple[int, ...] = ()
    number: int = 0
    """The number of the step among all 2(N − 1)."""


def ring_steps(ranks: int, values: Sequence[Sequence[float]] | None = None) -> tuple[RingStep, ...]:
    """The state before, and after each of the 2(N − 1) steps.

    `values[r][c]` is chunk c of rank r. By default rank r starts with 10^r in every chunk: the ones among the digits of
    a sum then say whose values are in it.
    """
    if not 1 <= ranks <= _MOST_RANKS:
        raise ValueError(f"ranks = {ranks}: expected 1 to {_MOST_RANKS}, so that the numbers can be read")
    now = [[10**rank] * ranks for rank in range(ranks)] if values is None else [list(row) for row in values]
    if [len(row) for row in now] != [ranks] * ranks:
        raise ValueError(
            f"values has rows of {[len(row) for row in now]} chunks: expected {ranks} rows of {ranks}, one per rank"
        )
    terms = [[1] * ranks for _ in range(ranks)]
    steps = [RingStep("before", _frozen(now), _frozen(terms))]
    for number in range(1, 2 * ranks - 1):
        adds = number < ranks
        k = number - 1 if adds else number - ranks
        sent = tuple((rank - k - adds) % ranks for rank in range(ranks))
        moving = [(now[rank][chunk], terms[rank][chunk]) for rank, chunk in enumerate(sent)]
        for rank, (chunk, (value, count)) in enumerate(zip(sent, moving, strict=True)):
            to = (rank + 1) % ranks
            now[to][chunk] = now[to][chunk] + value if adds else value
            terms[to][chunk] = terms[to][chunk] + count if adds else count
        steps.append(RingStep("reduce-scatter" if adds else "all-gather", _frozen(now), _frozen(terms), sent, number))
    return tuple(steps)


def _frozen(rows: list[list]) -> tuple[tuple, ...]:
    return tuple(map(tuple, rows))


def draw_ring(step: RingStep) -> "Figure":
    """Draw a row for each rank and a column for each chunk. Arrows show the chunks sent in this step. The cells show
    the contents after it, partial sums in blue, complete ones in green."""
    ranks = len(step.values)
    texts = [[_text(value) for value in row] for row in step.values]
    widest = max(len(text) for row in texts for text in row)
    wide = max(0.62, 0.085 * widest + 0.2)
    fig, axes = figure(width=max(4.6, wide * ranks + 1.2), height=0.62 * ranks + 1.5)
    for rank, row in enumerate(texts):
        for chunk, text in enumerate(row):
            fresh = bool(step.sent) and step.sent[rank - 1] == chunk
            _draw_cell(axes, rank, chunk, text, step.terms[rank][chunk] / ranks, fresh)
    for rank, chunk in enumerate(step.sent):
        _draw_move(axes, rank, chunk, ranks)
    axes.set(xlim=(0, ranks), ylim=(ranks + 0.3, -0.3))
    axes.set_xticks([chunk + 0.5 for chunk in range(ranks)], [f"chunk {chunk}" for chunk in range(ranks)], fontsize=9)
    axes.set_yticks([rank + 0.5 for rank in range(ranks)], [f"rank {rank}" for rank in range(ranks)], fontsize=9)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    what = f"step {step.number} of {2 * (ranks - 1)}, {step.phase}" if step.number else "before the first step"
    axes.set_title(f"Ring all-reduce, {what}")
    return fig


def _draw_cell(axes: "Axes", rank: int, chunk: int, text: str, share: float, fresh: bool) -> None:
    from matplotlib.patches import Rectangle

    fill = (palette.green, 0.5) if share == 1.0 else (palette.sky, _TINT + 0.44 * share)
    edge, width = (palette.vermillion, 2.0) if fresh else (palette.grey, 0.8)
    axes.add_patch(Rectangle((chunk + 0.06, rank + 0.17), 0.88, 0.66, facecolor=fill, edgecolor=edge, lw=width))
    axes.text(chunk + 0.5, rank + 0.5, text, ha="center", va="center_baseline", fontsize=9)


def _draw_move(axes: "Axes", rank: int, chunk: int, ranks: int) -> None:
    """Draw an arrow from a cell down to the next rank's. From the last rank it leaves at the bottom and enters at the
    top."""
    ends = [(rank + 0.83, rank + 1.17)] if rank + 1 < ranks else [(ranks - 0.17, ranks + 0.25), (-0.25, 0.17)]
    for tail, head in ends:
        arrow = {"arrowstyle": "-|>", "color": palette.vermillion, "lw": 1.6, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (chunk + 0.5, head), (chunk + 0.5, tail), arrowprops=arrow, annotation_clip=False)


def _text(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def draw_ports(runs: Mapping[str, Run], bandwidth: float) -> "Figure":
    """Draw for each run, by its name, how many seconds each rank's port sends, and a line where the run ends."""
    fig, all_axes = figure(1, len(runs), width=9.5, height=3.2, sharex=True, sharey=True)
    longest = max(run.seconds for run in runs.values())
    for axes, (name, run) in zip(all_axes, runs.items(), strict=True):
        busy = [1e3 * sum(row) / bandwidth for row in run.bytes]
        axes.barh(range(len(busy)), busy, height=0.7, color=palette.sky)
        axes.axvline(1e3 * run.seconds, color=palette.vermillion, lw=2)
        right = run.seconds > 0.7 * longest
        axes.text(
            1e3 * run.seconds,
            -0.75,
            f" {1e3 * run.seconds:.2f} ms ",
            color=palette.vermillion,
            ha="right" if right else "left",
            va="bottom",
        )
        axes.set_title(name, loc="left", pad=18)
        axes.set(xlabel="ms that the rank's port sends", ylim=(len(busy) - 0.4, -0.6), yticks=range(len(busy)))
    all_axes[0].set_yticklabels([f"rank {rank}" for rank in range(len(all_axes[0].get_yticks()))])
    return fig


def draw_choices(
    sizes: Sequence[int], times: Mapping[str, Sequence[float]], chosen: Sequence[str], took: Sequence[float]
) -> "Figure":
    """Draw the predicted times of each algorithm by size, and a dot for each run of the one that was chosen."""
    fig, axes = figure(width=9.5, height=3.8)
    colours = dict(zip(times, (palette.orange, palette.blue, palette.green), strict=False))
    for name, seconds in times.items():
        axes.plot(sizes, [1e6 * second for second in seconds], color=colours[name], lw=1.5)
        axes.text(sizes[-1] * 1.2, 1e6 * seconds[-1], name, color=colours[name], va="center")
    for size, name, second in zip(sizes, chosen, took, strict=True):
        axes.plot([size], [1e6 * second], "o", color=colours.get(name, palette.grey), ms=7, mec=palette.ink, mew=0.8)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes[::2], [readable_bytes(size) for size in sizes[::2]])
    axes.set(xlim=(sizes[0] / 1.5, sizes[-1] * 8), xlabel="size of the tensor", ylabel="µs")
    axes.set_title("lines: predicted; dots: the chosen all-reduce, run", loc="left")
    return fig


def _library_sum(name: str) -> "Callable[[torch.Tensor], torch.Tensor]":
    def run(x: "torch.Tensor") -> "torch.Tensor":
        from threeloops.training.collectives import ALL_REDUCES, TorchPeers

        total = x.clone()
        ALL_REDUCES[name].run(TorchPeers(), total, "sum")
        return total

    return run


def _reduce_scatter(x: "torch.Tensor") -> "torch.Tensor":
    from threeloops.training.collectives import TorchPeers, ring_reduce_scatter

    peers = TorchPeers()
    out = x.tensor_split(peers.size)[peers.rank].clone()
    ring_reduce_scatter(peers, out, x)
    return out


def _fit_link(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    from threeloops.training.collectives import fit

    link = fit(sizes, seconds)
    return link.latency, link.bandwidth


def _seconds(name: str, elements: int, element_size: int, ranks: int, latency: float, bandwidth: float) -> float:
    from threeloops.training.collectives import ALL_REDUCES, Link

    if name == "naive":  # through one port, where the library gives each pair of ranks a link
        return 2 * (latency + (ranks - 1) * elements * element_size / bandwidth)
    name = {"doubling": "recursive doubling"}.get(name, name)
    return ALL_REDUCES[name].cost(elements, element_size, ranks, Link(latency, bandwidth)).seconds


def _fastest(*arguments: Any) -> str:
    return min(("naive", "ring", "doubling"), key=lambda name: _seconds(name, *arguments))


REFERENCE: dict[str, Any] = {
    "sum_through_rank_0": _library_sum("naive"),
    "reduce_scatter": _reduce_scatter,
    "doubling_all_reduce": _library_sum("recursive doubling"),
    "choose_algorithm": {"all_reduce_seconds": _seconds, "fastest_all_reduce": _fastest},
    "fit_link": _fit_link,
}
"""The library's answers to the exercises of lab 08, for the parts that a reader has not written."""
