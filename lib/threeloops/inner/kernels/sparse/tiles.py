"""The shared parts of the windowed and the block-sparse kernels: tile sizes per target, and the steps on a tile, which
load and store it, take it into a softmax, and add its part of the gradients.

The notation is that of `flash_attention`. Here `scale` includes log2(e), so that exponentials are powers of two, and
`lse`, the log-sum-exp of a row, is to the base 2, as the backward pass needs it.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
import triton
import triton.language as tl

from threeloops.inner.kernels.attention.sizes import Shipped
from threeloops.inner.kernels.launching import Tiles, target

__all__ = [
    "add_gradient_of_keys", "add_gradient_of_queries", "finish", "hide_absent", "hide_outside_window", "load_tile",
    "shipped", "store_tile", "take_tile",
]  # fmt: skip

_SHIPPED: Mapping[str, Mapping[int, Shipped]] = {
    "sm_80": {
        64: Shipped(Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 1), Tiles(32, 64, 8, 1)),
        128: Shipped(Tiles(128, 32, 8, 2), Tiles(64, 64, 8, 1), Tiles(32, 64, 8, 1)),
    },
    "sm_90": {
        64: Shipped(Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(64, 128, 8, 1)),
        128: Shipped(Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(32, 128, 8, 2)),
    },
    "sm_100": {
        64: Shipped(Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 1), Tiles(64, 128, 8, 1)),
        128: Shipped(Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 2), Tiles(64, 128, 8, 1)),
    },
    "gfx942": {
        64: Shipped(Tiles(128, 64, 8, 1), Tiles(128, 64, 8, 1), Tiles(64, 64, 4, 1)),
        128: Shipped(Tiles(128, 64, 8, 1), Tiles(64, 32, 4, 1), Tiles(32, 64, 4, 1)),
    },
}
"""Tiles by target and head_dim (64: up to 64), for 16 bits. Each compiles without spills and fits shared memory."""

_EXACT = {
    64: Shipped(Tiles(32, 32, 8, 1), Tiles(32, 32, 8, 1), Tiles(16, 32, 8, 1)),
    128: Shipped(Tiles(32, 32, 8, 1), Tiles(16, 16, 8, 1), Tiles(16, 32, 8, 1)),
}
_FLOAT32: Mapping[str, Mapping[int, Shipped]] = {
    "sm_80": _EXACT,
    "sm_90": {**_EXACT, 128: replace(_EXACT[128], grad_k_v=Tiles(16, 32, 4, 1))},
    "sm_100": _EXACT,
    "gfx942": {
        **_EXACT,
        128: replace(_EXACT[128], forward=Tiles(64, 32, 8, 1), grad_k_v=Tiles(16, 32, 4, 1)),
    },
}
"""Float32 is multiplied in full, without tensor cores, where small tiles are as good and big ones spill."""


def shipped(dtype: torch.dtype, head_dim: int) -> Shipped:
    """Return the tiles of the sparse kernels for the current target."""
    return (_FLOAT32 if dtype == torch.float32 else _SHIPPED)[target()][max(head_dim, 64)]


@triton.jit
def load_tile(matrix, first, length, stride, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Load rows first … first + ROWS − 1 of a (length, head_dim) matrix, with zeros past its end. Only the start takes
    64 bits."""
    rows = tl.arange(0, ROWS)
    tile = matrix + tl.cast(first, tl.int64) * stride
    at = rows[:, None] * stride + tl.arange(0, HEAD_DIM)[None, :]
    return tl.load(tile + at, mask=rows[:, None] < length - first, other=0.0)


@triton.jit
def store_tile(matrix, first, length, values):
    """Write values to rows first, first + 1, … of a contiguous (length, head_dim) matrix, up to its end."""
    rows = tl.arange(0, values.shape[0])
    tile = matrix + tl.cast(first, tl.int64) * values.shape[1]
    at = rows[:, None] * values.shape[1] + tl.arange(0, values.shape[1])[None, :]
    tl.store(tile + at, values.to(matrix.dtype.element_ty), mask=rows[:, None] < length - first)


@triton.jit
def hide_outside_window(scores, queries, keys, window, sinks):
    """Replace scores by −inf for keys in the future, and for keys that have left the window, except the first
    `sinks`."""
    return tl.where((keys <= queries) & ((keys > queries - window) | (keys < sinks)), scores, float("-inf"))


@triton.jit
def hide_absent(scores, queries, keys, end, CAUSAL: tl.constexpr):
    """Replace scores by −inf for keys from `end` on and, if causal, for keys in the future of their query."""
    visible = keys < end
    if CAUSAL:
        visible = visible & (keys <= queries)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def take_tile(scores, scale, v_values, maximum, total, values):
    """Take one step of an online softmax: maximum, sum and weighted values of each row, including this tile."""
    new_maximum = tl.maximum(maximum, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - new_maximum[:, None])
    rescale = tl.exp2(maximum - new_maximum)
    total = total * rescale + tl.sum(weights, 1)
    values = tl.dot(weights.to(v_values.dtype), v_values, values * rescale[:, None], input_precision="ieee")
    return new_maximum, total, values


@triton.jit
def finish(maximum, total, values):
    """Return the output and log-sum-exp of each row, or 0 and −inf if it has seen no key."""
    sees_nothing = total == 0
    lse = tl.where(sees_nothing, float("-inf"), maximum + tl.log2(total))
    return values / tl.where(sees_nothing, 1.0, total)[:, None], lse


@triton.jit
def add_gradient_of_queries(scores, scale, k_values, v_values, grad_output, lse, delta, grad_q):
    """Add the part of a tile of keys (columns of scores) to the gradient of the queries (rows), without the scale."""
    weights = tl.exp2(scores * scale - lse[:, None])
    grad_weights = tl.dot(grad_output, v_values.T, input_precision="ieee")
    grad_scores = weights * (grad_weights - delta[:, None])
    return tl.dot(grad_scores.to(k_values.dtype), k_values, grad_q, input_precision="ieee")


@triton.jit
def add_gradient_of_keys(scores, scale, q_values, v_values, grad_output, lse, delta, grad_k, grad_v):
    """Add the part of a tile of queries (columns of scores) to the gradients of keys and values (rows).

    Keys down, queries across: so the weights are the left factor of the next product as they lie in registers.
    """
    weights = tl.exp2(scores * scale - lse[None, :])
    grad_v = tl.dot(weights.to(grad_output.dtype), grad_output, grad_v, input_precision="ieee")
    grad_weights = tl.dot(v_values, grad_output.T, input_precision="ieee")
    grad_scores = weights * (grad_weights - delta[None, :])
    return tl.dot(grad_scores.to(q_values.dtype), q_values, grad_k, input_precision="ieee"), grad_v
