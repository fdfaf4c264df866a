"""The memory hierarchy: levels and their latency, sectors under a warp, banks of shared memory, and tiles of a product.

The numbers of sectors and wavefronts come from `threeloops.inner.machine_models.warp`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from threeloops.figures import figure, palette
from threeloops.inner.machine_models.warp import LANES, Placement, sectors, wavefronts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Curve", "Tiled", "draw_banks", "draw_groups", "draw_order", "draw_question", "draw_staircase", "draw_tiles",
    "draw_turned_tile", "draw_warp",
]  # fmt: skip

_LOADED = palette.blue
"""Bytes that a lane wants."""
_FETCHED = palette.orange
"""Sectors that travel."""
_SECTOR_BYTES = 32
_SHOWN_BYTES = 33 * _SECTOR_BYTES
_MATRIX = 32
"""Rows and columns of the matrices in the picture of a transpose."""


class Curve(NamedTuple):
    """A pointer chase: nanoseconds per load in working sets of these sizes, in bytes."""

    name: str
    sizes: Sequence[int]
    nanoseconds: Sequence[float]


class Tiled(NamedTuple):
    """The bytes that products with one tile size move: predicted, counted by the meter, and loaded from DRAM."""

    tile: int
    predicted: int
    asked: int
    from_dram: Mapping[str, int]
    """Bytes from DRAM, by the name of the order of the tiles."""


def draw_question(curve: Curve) -> "Figure":
    """Draw a chase without its numbers, and 32 lanes above memory: the lab's two questions, without answers."""
    fig, (left, right) = figure(1, 2, width=10.5, height=3.2)
    left.plot(curve.sizes, curve.nanoseconds, "o-", color=palette.blue, ms=4)
    left.set(xscale="log", yscale="log", xticks=[], yticks=[], xlabel="working set", ylabel="time of one load")
    left.set_title("Why are there steps?")
    left.minorticks_off()
    for lane in range(LANES):
        right.barh([1.0], [0.8], left=lane, height=0.3, color=palette.sky)
        arrow = {"arrowstyle": "-|>", "color": palette.grey}
        right.annotate("", (lane + 0.4, 0.2), (lane + 0.4, 0.82), arrowprops=arrow)
    right.barh([0.05], [LANES], left=0, height=0.3, color=palette.orange, alpha=0.5)
    right.text(LANES / 2, 1.35, f"{LANES} lanes, one load", ha="center")
    right.text(LANES / 2, 0.05, "memory", ha="center", va="center")
    right.set(xlim=(-1, LANES + 1), ylim=(-0.3, 1.7), xticks=[], yticks=[])
    right.set_title("What does memory send back?")
    for axes in (left, right):
        axes.grid(visible=False)
    return fig


def draw_warp(request: tuple[str, np.ndarray]) -> "Figure":
    """One load of a warp: a line from each lane to the four bytes that it wants, in the sectors that travel for it.

    `request` is its name and the byte address of each lane, below 1,056.
    """
    name, addresses = request
    fig, axes = figure(width=10.5, height=2.8)
    touched = set((addresses // _SECTOR_BYTES).tolist())
    for sector in range(_SHOWN_BYTES // _SECTOR_BYTES):
        look = {"color": _FETCHED, "alpha": 0.55} if sector in touched else {"color": palette.grey, "alpha": 0.15}
        axes.barh([0], [30], left=_SECTOR_BYTES * sector + 1, height=0.3, **look)
    for lane, address in enumerate(addresses.tolist()):
        axes.plot([32 * lane + 18, address + 2], [0.9, 0.15], color=_LOADED, lw=0.8)
        axes.barh([1], [24], left=32 * lane + 6, height=0.2, color=_LOADED)
        axes.barh([0], [4], left=address, height=0.3, color=_LOADED, ec="none")
    share = 4 * len(np.unique(addresses)) / (_SECTOR_BYTES * sectors(addresses))
    axes.set(
        xlim=(-4, _SHOWN_BYTES + 4),
        ylim=(-0.62, 1.2),
        yticks=[0, 1],
        yticklabels=["memory", "lanes"],
        xlabel="address in bytes",
    )
    axes.text(0, -0.25, "orange: sectors that travel; blue: bytes that are wanted", fontsize=10, va="top")
    axes.set_title(f"{name}: {_sectors(len(touched))}, {100 * share:.3g}% of their bytes used")
    axes.grid(visible=False)
    return fig


def draw_staircase(curves: Sequence[Curve], levels: Sequence[tuple[float, int]]) -> "Figure":
    """Curves of a pointer chase on one axis, and a dotted line per level of the first: its latency (ns) and the largest
    working set that it holds (bytes)."""
    fig, axes = figure(width=9.5, height=4.2)
    shades = (palette.blue, palette.vermillion)
    for curve, shade in zip(curves, shades, strict=False):
        axes.plot(curve.sizes, curve.nanoseconds, "o-", color=shade, ms=4)
    first = curves[0]
    _name_curve(axes, first, -1, (6, 6), shades[0])
    if len(curves) > 1:
        _name_curve(axes, curves[1], len(curves[1].sizes) // 4, (0, -18), shades[1])
    for latency, fits in levels:
        axes.axhline(latency, color=palette.grey, lw=1, ls=":")
        at, align = (2**12, "left") if latency > 20 else (2**28, "right")  # where no curve is
        least = "at least " if fits == first.sizes[-1] else ""
        text = f"{latency:.3g} ns, fits {least}{_binary(fits)}"
        axes.text(at, latency * 1.1, text, fontsize=10, ha=align)
    axes.set(xscale="log", yscale="log", xlabel="working set", ylabel="ns per dependent load")
    axes.set_title("Every level that the working set outgrows makes a load slower")
    axes.set_xticks([2**k for k in range(12, 30, 4)], [_binary(2**k) for k in range(12, 30, 4)])
    axes.set_yticks([1, 10, 100], ["1", "10", "100"])
    axes.minorticks_off()
    axes.margins(x=0.12, y=0.15)
    return fig


def _name_curve(axes: "Axes", curve: Curve, point: int, offset: tuple[int, int], shade: str) -> None:
    place = (curve.sizes[point], curve.nanoseconds[point])
    axes.annotate(curve.name, place, xytext=offset, textcoords="offset points", color=shade)


def _turned_sectors(height: int, width: int) -> tuple[int, int]:
    """Count the sectors that are read and written if a tile of `height` × 32 elements of `width` bytes is transposed.

    Matrices have 32 rows and 32 columns. Each row of the tile is one request, and each row of its transpose is another.
    """
    run = np.arange(LANES) * width
    read = height * sectors(run, width)
    return read, _MATRIX * sectors(run[:height], width)


def draw_turned_tile(height: int, width: int) -> "Figure":
    """Draw the tile that a program reads and the place where it is written, for one row and for `height` rows."""
    fig, panels = figure(1, 4, width=12.5, height=3.9)
    per_sector = _SECTOR_BYTES // width
    for pair, rows in ((panels[:2], 1), (panels[2:], height)):
        wanted = rows * _MATRIX * width
        for axes, side, count in zip(
            pair, ("read from x", "written to out"), _turned_sectors(rows, width), strict=True
        ):
            high, wide = (rows, _MATRIX) if axes is pair[0] else (_MATRIX, rows)
            full = -(-wide // per_sector) * per_sector
            axes.add_patch(_rectangle(full, high, _FETCHED, 0.45))
            axes.add_patch(_rectangle(wide, high, _LOADED, 0.9))
            for at in range(per_sector, _MATRIX, per_sector):
                axes.axvline(at, color=palette.grey, lw=0.5)
            axes.set(xlim=(0, _MATRIX), ylim=(_MATRIX, 0), xticks=[], yticks=[], aspect="equal")
            axes.set_title(f"{side}\n{_sectors(count)}, {100 * wanted / _SECTOR_BYTES / count:.3g}% used", fontsize=11)
            axes.grid(visible=False)
        pair[0].set_xlabel(f"{rows} row{'s' * (rows > 1)} per program", loc="left")
    panels[1].set_xlabel("blue: the program's elements", loc="left")
    panels[3].set_xlabel("orange: unused bytes of their sectors", loc="left")
    return fig


def _rectangle(width: float, height: float, shade: str, alpha: float):
    from matplotlib.patches import Rectangle

    return Rectangle((0, 0), width, height, facecolor=shade, alpha=alpha, edgecolor="none")


def draw_banks(placements: Mapping[str, Placement]) -> "Figure":
    """A tile of 32 × 32 words in shared memory, coloured by bank, once per placement, with one column framed."""
    from matplotlib.patches import Rectangle

    fig, panels = figure(1, len(placements), width=12.5, height=5.0)
    row, column = np.indices((LANES, LANES))
    for axes, (name, place) in zip(panels, placements.items(), strict=True):
        bank = (place(row.reshape(-1), column.reshape(-1)) % LANES).reshape(LANES, LANES)
        axes.imshow(bank, cmap="twilight", interpolation="nearest")
        axes.add_patch(Rectangle((4.5, -0.5), 1, LANES, fill=False, edgecolor=palette.vermillion, lw=2))
        rounds = wavefronts(place(np.arange(LANES), np.full(LANES, 5)) * 4, 4)
        axes.set_title(f"{name}\na column: {rounds} round{'s' * (rounds > 1)}", fontsize=11)
        axes.set(xlabel="column of the tile", xticks=[0, 8, 16, 24, 31], yticks=[0, 8, 16, 24, 31])
        axes.grid(visible=False)
    panels[0].set_ylabel("row of the tile")
    return fig


def draw_order(order: Sequence[tuple[int, int]], resident: int) -> "Figure":
    """Number the tiles of a square C by program, and mark the strips of A and B that the first `resident` need."""
    side = max(max(tile) for tile in order) + 1
    fig, axes = figure(width=6.8, height=4.8)
    first = order[:resident]
    rows, columns = ({tile[axis] for tile in first} for axis in (0, 1))
    for strip in range(side):
        axes.barh([strip], [0.7], left=-1.6, height=0.94, color=palette.orange, alpha=1.0 if strip in rows else 0.2)
        alpha = 1.0 if strip in columns else 0.2
        axes.barh([-1.25], [0.94], left=strip - 0.47, height=0.7, color=palette.green, alpha=alpha)
    for number, (row, column) in enumerate(order):
        if number < resident:
            axes.barh([row], [0.94], left=column - 0.47, height=0.94, color=palette.sky, alpha=0.5)
        axes.text(column, row, number, ha="center", va="center", fontsize=9)
    axes.set(xlim=(-1.8, side - 0.4), ylim=(side - 0.4, -1.8), xticks=[], yticks=[])
    axes.set_ylabel("strips of A", color=palette.orange)
    axes.set_xlabel("strips of B", color=palette.green)
    axes.xaxis.set_label_position("top")
    axes.set_title(f"The first {resident} programs (blue) need {len(rows)} + {len(columns)} strips")
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.grid(visible=False)
    return fig


def draw_groups(asked: int, from_dram: Mapping[int, int], title: str) -> "Figure":
    """Draw the bytes from DRAM for each number of rows in a group, below a line for the bytes asked for.

    A red bar is worse than no groups.
    """
    fig, axes = figure(width=8.5, height=3.4)
    at = np.arange(len(from_dram))
    without = from_dram[1] / 1024
    values = [size / 1024 for size in from_dram.values()]
    shades = [palette.vermillion if value > without else palette.blue for value in values]
    shades[list(from_dram).index(1)] = palette.grey
    axes.bar_label(axes.bar(at, values, 0.6, color=shades), fmt="%.0f", fontsize=10)
    for height, text in ((asked / 1024, "asked for, whatever the order"), (without, "")):
        axes.axhline(height, color=palette.grey, lw=1, ls="--")
        axes.text(at[-1] + 0.4, height, text, ha="right", va="bottom", fontsize=10)
    names = ["no groups" if group == 1 else f"{group} rows" for group in from_dram]
    axes.set(xticks=at, xticklabels=names, xlabel="height of a group of tiles", ylabel="KiB from DRAM, modelled")
    axes.set_ylim(0, 1.15 * max(asked / 1024, *values))
    axes.set_title(title)
    axes.grid(visible=False)
    return fig


def draw_tiles(rows: Sequence[Tiled], once: int) -> "Figure":
    """Bytes that products with several tile sizes ask for and load from DRAM, and those of all matrices, moved once."""
    fig, axes = figure(width=9.5, height=4.2)
    at = np.arange(len(rows))
    predicted = [row.predicted / 1024 for row in rows]
    axes.plot(at, predicted, color=palette.blue, lw=1.5)
    axes.plot(at, [row.asked / 1024 for row in rows], "o", color=palette.blue, ms=7)
    _name_point(axes, "asked for: line predicted, dots metered", predicted[0], palette.blue, (10, -4))
    for name, shade, below in zip(rows[0].from_dram, (palette.vermillion, palette.green), (False, True), strict=False):
        loaded = [row.from_dram[name] / 1024 for row in rows]
        axes.plot(at, loaded, "o-", color=shade, ms=5, lw=1.5)
        _name_point(axes, f"from DRAM, {name}", loaded[0], shade, (-8, -50 if below else 8))
    axes.axhline(once / 1024, color=palette.grey, lw=1, ls="--")
    axes.text(-0.28, once / 1024, "each matrix once", va="bottom", fontsize=10)
    axes.set(xlim=(-0.3, at[-1] + 0.3), ylim=(0, None), ylabel="KiB", xticks=at)
    axes.set_xticklabels([f"{row.tile} × {row.tile}" for row in rows])
    axes.set_xlabel("tile of C")
    axes.set_title("Larger tiles ask for less; a better order loads less of it from DRAM")
    return fig


def _name_point(axes: "Axes", text: str, height: float, shade: str, offset: tuple[int, int]) -> None:
    axes.annotate(text, (0, height), xytext=offset, textcoords="offset points", color=shade)


def _sectors(count: int) -> str:
    return f"{count} sector{'s' * (count > 1)}"


def _binary(size: int) -> str:
    return f"{size >> 20:,} MiB" if size >= 1 << 20 else f"{size >> 10:,} KiB"
