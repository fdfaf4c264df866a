"""Shared parts of the 2-simplicial attention kernels: checks of sizes, tile sizes per target, and functions of the
kernels."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from threeloops.inner.kernels import launching
from threeloops.inner.kernels.attention.sizes import LARGEST_GRID
from threeloops.inner.kernels.launching import LOG2_E, Configuration, Tiles, target

__all__ = ["LOG2_E_CONSTANT", "Problem", "Shipped", "hide", "load_rows", "merge", "problem_of", "sum_rows", "to_rows"]

_HEAD_DIMS = (32, 64, 128)


@dataclass(frozen=True)
class Shipped:
    """The tiles of the four kernels: the output; the gradients of q; of k2 and v2; of k1 and v1."""

    forward: Tiles
    grad_q: Tiles
    grad_k2_v2: Tiles
    grad_k1_v1: Tiles


_SHIPPED: Mapping[str, Mapping[int, Shipped]] = {
    "sm_80": {
        32: Shipped(Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 2), Tiles(32, 64, 8, 1)),
        64: Shipped(Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(128, 32, 8, 2), Tiles(32, 64, 8, 1)),
        128: Shipped(Tiles(128, 32, 8, 2), Tiles(64, 64, 8, 2), Tiles(64, 64, 8, 2), Tiles(32, 64, 8, 1)),
    },
    "sm_90": {
        32: Shipped(Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 2), Tiles(32, 128, 8, 2)),
        64: Shipped(Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 1), Tiles(32, 128, 8, 2)),
        128: Shipped(Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(64, 64, 8, 2), Tiles(32, 128, 8, 1)),
    },
    "sm_100": {
        32: Shipped(Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 2), Tiles(32, 128, 8, 2)),
        64: Shipped(Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 2), Tiles(32, 128, 8, 2)),
        128: Shipped(Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 2), Tiles(128, 32, 8, 2), Tiles(32, 128, 8, 2)),
    },
    "gfx942": {
        32: Shipped(Tiles(128, 64, 8, 1), Tiles(128, 64, 8, 1), Tiles(128, 64, 8, 1), Tiles(32, 64, 4, 1)),
        64: Shipped(Tiles(128, 64, 8, 1), Tiles(128, 64, 8, 1), Tiles(128, 32, 8, 1), Tiles(32, 64, 4, 1)),
        128: Shipped(Tiles(128, 64, 8, 1), Tiles(64, 32, 8, 1), Tiles(64, 32, 4, 1), Tiles(16, 64, 4, 1)),
    },
}
"""Tiles by target and head_dim, for 16 bits. Each compiles without spills and fits the target's shared memory."""

_EXACT = {
    32: Shipped(Tiles(32, 32, 8, 1), Tiles(32, 32, 8, 1), Tiles(32, 32, 8, 1), Tiles(16, 32, 8, 1)),
    64: Shipped(Tiles(32, 32, 8, 1), Tiles(32, 32, 8, 1), Tiles(32, 32, 8, 1), Tiles(16, 32, 8, 1)),
    128: Shipped(Tiles(32, 32, 8, 1), Tiles(32, 16, 4, 1), Tiles(32, 32, 4, 1), Tiles(16, 32, 8, 1)),
}
_FLOAT32: Mapping[str, Mapping[int, Shipped]] = {
    "sm_80": {
        **_EXACT,
        64: replace(_EXACT[64], forward=Tiles(64, 32, 8, 1), grad_k2_v2=Tiles(32, 32, 4, 1)),
        128: replace(_EXACT[128], grad_k2_v2=Tiles(32, 32, 8, 1)),
    },
    "sm_90": {**_EXACT, 64: replace(_EXACT[64], grad_k2_v2=Tiles(32, 16, 8, 1))},
    "sm_100": {
        **_EXACT,
        64: replace(_EXACT[64], grad_k2_v2=Tiles(32, 32, 4, 1)),
        128: replace(_EXACT[128], grad_k2_v2=Tiles(64, 16, 8, 1)),
    },
    "gfx942": _EXACT,
}
"""Float32 is multiplied in full, without tensor cores, where small tiles are as good and big ones spill."""


@dataclass(frozen=True)
class Problem:
    """The sizes of one call. `heads` and `kv_heads` count the whole batch. Windows are no longer than the sequence."""

    heads: int
    kv_heads: int
    length: int
    head_dim: int
    window1: int
    window2: int
    scale: float
    dtype: torch.dtype

    @property
    def is_empty(self) -> bool:
        return self.heads * self.length == 0

    @property
    def group(self) -> int:
        """Heads of q that share one head of the keys."""
        return self.heads // self.kv_heads if self.kv_heads else 1

    @property
    def shipped(self) -> Shipped:
        return (_FLOAT32 if self.dtype == torch.float32 else _SHIPPED)[target()][self.head_dim]

    def offsets_per_tile(self, tiles: Tiles) -> int:
        """Return how many of a query's offsets a tile covers: the smaller window rounded up to a power of two, if they
        fit."""
        return min(triton.next_power_of_2(self.window2), tiles.rows)

    def chunks(self, tiles: Tiles) -> int:
        """Return the number of chunks into which these tiles cut the offsets of the smaller window."""
        return triton.cdiv(self.window2, self.offsets_per_tile(tiles))

    def rows_that_are_pairs(self, tiles: Tiles) -> Configuration:
        """Return a tile's rows divided between positions and, for each of them, the offsets of its pairs."""
        offsets = self.offsets_per_tile(tiles)
        constants = {
            "GROUP": self.group,
            "HEAD_DIM": self.head_dim,
            "BLOCK_POSITIONS": tiles.rows // offsets,
            "BLOCK_OFFSETS": offsets,
            "BLOCK_KEYS": tiles.keys,
        }
        return tiles.configuration(constants)


def problem_of(
    q: torch.Tensor,
    k1: torch.Tensor,
    k2: torch.Tensor,
    v1: torch.Tensor,
    v2: torch.Tensor,
    window1: int,
    window2: int,
    softmax_scale: float | None = None,
) -> Problem:
    """Return the sizes of these arguments, with window1 ≥ window2. Raises ValueError for arguments that the kernels
    cannot compute."""
    others = {"k1": k1, "k2": k2, "v1": v1, "v2": v2}
    launching.require_tensors(q=q, **others)
    for name, tensor in {"q": q, **others}.items():
        launching.require_dimensions(name, tensor, "batch, heads, sequence, head_dim")
    batch, heads, length, head_dim = q.shape
    kv_heads = k1.shape[1]
    launching.require_divides("heads of k1", kv_heads, "heads of q", heads)
    for name, tensor in others.items():
        shape = (batch, kv_heads, length, head_dim)
        launching.require_shape(name, tensor, shape, "batch, sequence and head_dim of q, heads of k1")
    launching.require_head_dim(head_dim, _HEAD_DIMS)
    for name, window in (("window1", window1), ("window2", window2)):
        if window < 1:
            raise ValueError(f"{name} = {window}: expected at least 1, a query's own position")
    window1, window2 = min(window1, max(length, 1)), min(window2, max(length, 1))
    if max((window1 + 256) * window2, (length + 256) * head_dim) > launching.LARGEST_INT32:
        raise ValueError(
            f"sequence of {length}, windows of {window1} and {window2}: expected fewer than 2³¹ pairs in the windows "
            "and elements in a head, so that 32 bits can number them; take smaller windows, or split the sequence"
        )
    if batch * heads > LARGEST_GRID:
        raise ValueError(f"batch · heads = {batch * heads}: expected at most {LARGEST_GRID}; split the batch")
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    launching.require_finite("softmax_scale", scale)
    return Problem(batch * heads, batch * kv_heads, length, head_dim, window1, window2, scale, q.dtype)


LOG2_E_CONSTANT = tl.constexpr(LOG2_E)


@triton.jit
def load_rows(matrix, rows, exists, HEAD_DIM: tl.constexpr):
    """Load these rows of a contiguous (sequence, head_dim) matrix, with zeros for rows that do not exist."""
    at = rows[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    return tl.load(matrix + at, mask=exists[:, None], other=0.0)


@triton.jit
def hide(logits, queries, keys, window):
    """Replace logits by −inf where a key is in the future of its query or has left the query's window."""
    return tl.where((keys <= queries) & (keys > queries - window), logits, float("-inf"))


@triton.jit
def to_rows(values, ROWS: tl.constexpr):
    """Repeat each value for all rows of its query: (n,) → (ROWS,)."""
    OFFSETS: tl.constexpr = ROWS // values.shape[0]
    return tl.reshape(tl.broadcast_to(values[:, None], (values.shape[0], OFFSETS)), (ROWS,))


@triton.jit
def sum_rows(rows, QUERIES: tl.constexpr):
    """Add up the rows of each query: (rows, head_dim) → (QUERIES, head_dim)."""
    OFFSETS: tl.constexpr = rows.shape[0] // QUERIES
    return tl.sum(tl.reshape(rows, (QUERIES, OFFSETS, rows.shape[1])), 1)


@triton.jit
def merge(maximum, total, output, row_maximum, row_total, row_output):
    """Merge the softmax of each row into that of its query: maxima, sums and the outputs, which are not yet divided by
    the sums."""
    QUERIES: tl.constexpr = maximum.shape[0]
    ROWS: tl.constexpr = row_maximum.shape[0]
    new_maximum = tl.maximum(maximum, tl.max(tl.reshape(row_maximum, (QUERIES, ROWS // QUERIES)), 1))
    rescale = tl.exp2(maximum - new_maximum)
    row_rescale = tl.exp2(row_maximum - to_rows(new_maximum, ROWS))
    total = total * rescale + tl.sum(tl.reshape(row_total * row_rescale, (QUERIES, ROWS // QUERIES)), 1)
    return new_maximum, total, output * rescale[:, None] + sum_rows(row_output * row_rescale[:, None], QUERIES)
