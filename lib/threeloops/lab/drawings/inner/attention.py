"""Pictures of lab 04, FlashAttention, and the library's pieces that stand in for those the reader has not written.

The numbers in the pictures are data. How they are counted is the lab's second exercise.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from threeloops.figures import ON_LIGHT, figure, palette

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "draw_question", "draw_shards", "draw_traffic", "draw_walk", "drifting", "library_finish", "library_head",
    "library_merge",
]  # fmt: skip

_BLOCKS = (16, 32, 64, 128, 256, 512)
"""Queries per program."""
_NAIVE = (898, 514, 322, 226, 178, 154)
"""MiB that the programs of naive attention ask for, by the side of their tiles: 4,096 tokens, head_dim 128, BF16."""
_FUSED = (514, 258, 130, 66, 34, 18)
"""MiB that the programs of fused attention ask for, by their block of queries."""
_NAIVE_ONCE = 132
_FUSED_ONCE = 4
"""MiB if each byte crosses once per kernel that reads or writes it."""
_KEYS = 160
_TILE = 32


def draw_question() -> "Figure":
    """The table of scores between its narrow inputs, with its size left open."""
    fig, axes = figure(width=9.5, height=3.6)
    for left, bottom, width, height, name in (
        (0.6, 0.4, 0.25, 3.0, "Q"),
        (1.6, 3.7, 3.0, 0.25, "K"),
        (5.2, 0.4, 0.25, 3.0, "V"),
        (6.6, 0.4, 0.25, 3.0, "out"),
    ):
        axes.bar([left + width / 2], [height], width, bottom=bottom, color=palette.blue)
        axes.text(left - 0.1, bottom + height / 2, name, ha="right", va="center", weight="bold")
    axes.bar([3.1], [3.0], 3.0, bottom=0.4, color="none", edgecolor=palette.vermillion, linewidth=2)
    axes.text(3.1, 1.9, "4,096 × 4,096 scores\nMiB: ?", ha="center", va="center", color=palette.vermillion)
    axes.text(
        7.4, 2.4, "The table is written, read,\nwritten again and read again.\nDoes it have to exist?", va="center"
    )
    axes.set(xlim=(0, 11), ylim=(0.2, 4.1), xticks=[], yticks=[], title="One head of attention, 4,096 tokens")
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    return fig


def draw_traffic() -> "Figure":
    """The bytes that the programs of both kernels ask for, by the block of queries, and the least that must cross."""
    fig, axes = figure(width=9.0, height=3.8)
    for asked, once, colour, name in (
        (_NAIVE, _NAIVE_ONCE, palette.vermillion, "naive"),
        (_FUSED, _FUSED_ONCE, palette.blue, "fused"),
    ):
        axes.plot(_BLOCKS, asked, "o-", color=colour)
        axes.plot(_BLOCKS, [once] * len(_BLOCKS), ":", color=colour)
        axes.text(_BLOCKS[-1] * 1.07, asked[-1], f"{name}, asked for", color=colour, va="bottom")
        axes.text(
            _BLOCKS[-1] * 1.07, once, f"{name}, each byte once", color=colour, va="top" if once > 100 else "center"
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="queries per block",
        ylabel="MiB",
        title="Traffic of one head: 4,096 tokens, head_dim 128, BF16",
        xlim=(14, 1500),
        ylim=(3, 1200),
    )
    axes.set_xticks(_BLOCKS, [str(block) for block in _BLOCKS])
    axes.set_yticks([4, 18, 66, 132, 258, 514], ["4", "18", "66", "132", "258", "514"])
    axes.minorticks_off()
    return fig


def _walk(step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """One query's scores for 160 keys, the weights after the tile `step` and before it was merged, and the maximum.

    Keys of later tiles have the weight 0.
    """
    if not 0 <= step < _KEYS // _TILE:
        raise ValueError(f"step = {step}: expected 0 to {_KEYS // _TILE - 1}, one per tile of {_TILE} keys")
    keys = np.arange(_KEYS)
    scores = 2.2 * np.sin(keys / 19.0 - 1) + keys / 80
    before = _TILE * step
    done = before + _TILE
    high = float(scores[:done].max())
    weights = np.where(keys < done, np.exp(scores - high), 0.0)
    old = np.where(keys < before, np.exp(scores - scores[: max(before, 1)].max()), 0.0)
    return scores, weights, old, high


def draw_walk(step: int) -> "Figure":
    """The scores that a query has seen after a tile, its running maximum m, and the weights that make up its sum s."""
    scores, weights, old, high = _walk(step)
    keys = np.arange(_KEYS)
    begin = _TILE * step
    end = begin + _TILE
    fig, (top, bottom) = figure(2, 1, width=9.0, height=4.4, sharex=True)
    top.plot(keys[:end], scores[:end], color=palette.blue)
    top.plot(keys[begin:end], scores[begin:end], color=palette.orange, lw=3)
    top.plot([0, end], [high, high], color=palette.vermillion)
    top.text(end + 1.5, high, f"m = {high:.2f}", color=palette.vermillion, va="center")
    top.text(begin + _TILE / 2, -2.6, "this tile", color=palette.orange, ha="center")
    top.set(ylabel="score", ylim=(-3.2, 4.6), title=f"After tile {step}: the scores so far, and the largest")
    bottom.bar(keys[:begin], weights[:begin], 1.0, color=palette.blue)
    bottom.bar(keys[begin:end], weights[begin:end], 1.0, color=palette.orange)
    if begin and weights[:begin].max() < 0.999:
        bottom.step(keys[:begin], old[:begin], where="mid", color=palette.grey, lw=1)
        peak = int(old.argmax())
        bottom.text(peak, 1.04, "before this tile", color=palette.grey, ha="center", fontsize=10)
    bottom.text(end + 1.5, 0.5, f"s = {weights.sum():.1f}", va="center")
    bottom.set(
        ylabel="exp(score − m)", xlabel="key", ylim=(0, 1.25), xlim=(-1, 176), title="s is the sum of the weights"
    )
    _mark_tiles(top)
    _mark_tiles(bottom)
    return fig


def _mark_tiles(axes: "Axes") -> None:
    axes.set_xticks(range(0, _KEYS + 1, _TILE))
    axes.grid(axis="y", visible=False)


def drifting(queries: int, keys: int) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """Random q, k and v of head_dim 16, in which each query prefers the keys at its own relative place."""
    import torch

    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(rows, 16, generator=generator) for rows in (queries, keys, keys))
    for tensor in (q, k):
        angle = torch.linspace(0, torch.pi, len(tensor))
        tensor[:, 0], tensor[:, 1] = 6 * angle.cos(), 6 * angle.sin()
    return q, k, v


def draw_shards(shares: Sequence[Any]) -> "Figure":
    """How much of each query's softmax lies in each shard of the keys: `shares[shard][query]`.

    They add up to 1, unless the reader's results are wrong.
    """
    values = np.array([np.asarray(share, dtype=float) for share in shares])
    if values.ndim != 2:
        raise ValueError(f"shares have the shape {values.shape}: expected a row per shard, with a share per query")
    fig, axes = figure(width=9.0, height=3.0)
    colours = (palette.sky, palette.orange, palette.green, palette.purple, palette.yellow, palette.blue)
    queries = np.arange(values.shape[1])
    base = np.zeros(len(queries))
    for number, share in enumerate(values):
        axes.fill_between(queries, base, base + share, step="mid", color=colours[number % len(colours)], linewidth=0)
        at = int(share.argmax())
        name = f"shard {number}"
        place = min(max(at, 3), len(queries) - 4)
        axes.text(place, base[at] + share[at] / 2, name, ha="center", va="center", color=ON_LIGHT, weight="bold")
        base = base + share
    axes.set(
        xlim=(0, len(queries) - 1),
        ylim=(0, 1),
        xlabel="query",
        ylabel="share of the softmax",
        title="The merge is a mean, weighted by exp(lse of the shard − total lse)",
    )
    axes.grid(visible=False)
    return fig


def library_head(
    q: "torch.Tensor", k: "torch.Tensor", v: "torch.Tensor", block_m: int, block_n: int
) -> "tuple[torch.Tensor, torch.Tensor]":
    """(out, lse) of one head, (queries, head_dim), by the library's kernel."""
    from threeloops.inner.kernels.attention.flash_attention import flash_attention

    heads = (tensor[None, None] for tensor in (q, k, v))
    result = flash_attention(*heads, return_lse=True, block_m=block_m, block_n=block_n)
    assert isinstance(result, tuple)  # because of return_lse
    return result[0][0, 0], result[1][0, 0]


def library_merge(left: Any, right: Any) -> Any:
    """Merge two summaries with s = 1 by the library's ring attention: their m is an lse, and their a an output."""
    from threeloops.training.context_parallel.blocks import merge

    out, lse = merge(left.a, left.m, right.a, right.m)
    return type(left)(m=lse, s=left.s, a=out)


def library_finish(summary: Any) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return the output and the logsumexp of a summary with s = 1, which holds both."""
    return summary.a, summary.m
