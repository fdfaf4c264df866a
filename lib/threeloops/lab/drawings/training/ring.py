"""A ring all-reduce, step by step, with the data in it: `animate(draw_ring, ring_steps(4))`.

The ring is that of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (2009),
shifted by one chunk, so that rank r ends the reduce-scatter with chunk r, as in torch.distributed. In step k rank r
sends chunk r − 1 − k to rank r + 1, which adds it. In step k of the all-gather it sends chunk r − k, which replaces the
receiver's chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from threeloops.figures import figure, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["RingStep", "draw_ring", "ring_steps"]

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
