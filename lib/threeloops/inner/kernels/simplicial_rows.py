"""Pieces of the 2-simplicial attention kernels: load rows, hide what a window excludes, merge the rows of a query."""

import triton
import triton.language as tl

from threeloops.inner.kernels import tiles

LOG2_E = tl.constexpr(tiles.LOG2_E)


@triton.jit
def load_rows(matrix, rows, exists, HEAD_DIM: tl.constexpr):
    """These rows of a contiguous (sequence, head_dim) matrix, zeros for those that do not exist."""
    at = rows[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    return tl.load(matrix + at, mask=exists[:, None], other=0.0)


@triton.jit
def hide(logits, queries, keys, window):
    """−inf wherever a key is in the future of its query or has left the query's window."""
    return tl.where((keys <= queries) & (keys > queries - window), logits, float("-inf"))


@triton.jit
def to_rows(values, ROWS: tl.constexpr):
    """Each of the values for all its rows: (n,) → (ROWS,)"""
    OFFSETS: tl.constexpr = ROWS // values.shape[0]
    return tl.reshape(tl.broadcast_to(values[:, None], (values.shape[0], OFFSETS)), (ROWS,))


@triton.jit
def sum_rows(rows, QUERIES: tl.constexpr):
    """Add up the rows of each query: (rows, head_dim) → (QUERIES, head_dim)."""
    OFFSETS: tl.constexpr = rows.shape[0] // QUERIES
    return tl.sum(tl.reshape(rows, (QUERIES, OFFSETS, rows.shape[1])), 1)


@triton.jit
def merge(maximum, total, output, row_maximum, row_total, row_output):
    """Merge the softmax of each row into that of its query: maxima, sums and outputs not yet divided by them."""
    QUERIES: tl.constexpr = maximum.shape[0]
    ROWS: tl.constexpr = row_maximum.shape[0]
    new_maximum = tl.maximum(maximum, tl.max(tl.reshape(row_maximum, (QUERIES, ROWS // QUERIES)), 1))
    shrink = tl.exp2(maximum - new_maximum)
    row_shrink = tl.exp2(row_maximum - to_rows(new_maximum, ROWS))
    total = total * shrink + tl.sum(tl.reshape(row_total * row_shrink, (QUERIES, ROWS // QUERIES)), 1)
    return new_maximum, total, output * shrink[:, None] + sum_rows(row_output * row_shrink[:, None], QUERIES)
