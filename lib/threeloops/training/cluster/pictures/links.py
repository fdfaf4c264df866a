"""Draw the bytes between every two ranks as a heat map."""

from typing import TYPE_CHECKING

from threeloops.figures import figure, palette
from threeloops.training.cluster.cluster import Run
from threeloops.units import readable_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["link_matrix"]

_PALEST = 0.10
_DARKEST = 0.60
"""Opacity of the smallest and the largest number of bytes: below any of them, the page's ink can be read on it."""


def link_matrix(run: Run) -> "Figure":
    """Draw the bytes from each rank (row) to each other rank (column). Lines divide the nodes.

    Numbers are written if they fit, all in the unit that the title names. A pair that exchanged no message is left
    blank, and a pair whose messages were empty has a 0.
    """
    from matplotlib.collections import PolyCollection

    ranks = run.topology.ranks
    sent = run.bytes
    pairs = sorted({(m.source, m.target) for m in run.messages})
    largest = max((sent[a][b] for a, b in pairs), default=0)
    unit, name = _unit(largest)
    cell = min(0.55, 6.0 / ranks)
    fig, axes = figure(width=max(4.2, cell * ranks + 1.2), height=cell * ranks + 1.3)
    corners = [[(b, a), (b + 1, a), (b + 1, a + 1), (b, a + 1)] for a, b in pairs]
    shades = [_PALEST + (_DARKEST - _PALEST) * (sent[a][b] / largest if largest else 0.0) for a, b in pairs]
    colours = [palette.blue + f"{round(255 * shade):02x}" for shade in shades]
    axes.add_collection(PolyCollection(corners, facecolors=colours, edgecolors="white", lw=0.8))
    texts = [_number(sent[a][b] / unit) for a, b in pairs]
    size = min(10.0, 0.9 * cell * 72 / (0.6 * max(map(len, texts), default=1)))
    if size >= 6:
        for (a, b), text in zip(pairs, texts, strict=True):
            axes.text(b + 0.5, a + 0.5, text, ha="center", va="center_baseline", fontsize=size)
    nodes = run.topology.nodes
    for rank in range(1, ranks):
        if nodes[rank] != nodes[rank - 1]:
            axes.axhline(rank, color=palette.ink, lw=1.5)
            axes.axvline(rank, color=palette.ink, lw=1.5)
    every = max(1, round(0.16 / cell))
    places = range(0, ranks, every)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks([place + 0.5 for place in places], [str(place) for place in places], fontsize=9)
        axis.set_tick_params(length=0)
    axes.set(xlim=(0, ranks), ylim=(ranks, 0), aspect="equal", xlabel="to rank", ylabel="from rank")
    axes.grid(visible=False)
    axes.set_title(f"{name} sent; at most {readable_bytes(largest)} to one rank" if pairs else "no messages")
    return fig


def _unit(largest: int) -> tuple[int, str]:
    power = min(3, max(0, largest.bit_length() - 1) // 10)
    return 1 << 10 * power, ("Bytes", "KiB", "MiB", "GiB")[power]


def _number(value: float) -> str:
    return "<0.01" if 0 < value < 0.01 else f"{value:.4g}"
