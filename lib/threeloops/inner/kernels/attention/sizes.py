"""The shared parts of the attention kernels: checks of sizes, tile sizes per target, the causal mask, and the autograd
node.

A causal mask is aligned at the last query and the last key, as in FlashAttention-2: of n queries and m keys, query i
sees keys 0 … i + m − n. So a single query after a long prefix sees all of it. With as many keys as queries this is the
usual lower triangle. If n > m, the first n − m queries see nothing.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from threeloops.inner.costs import Work, visible_pairs
from threeloops.inner.kernels import launching
from threeloops.inner.kernels.launching import Tiles, target

__all__ = [
    "AttentionNode", "AttentionSizes", "LARGEST_BLOCK", "LARGEST_GRID", "Shipped", "cost", "heaviest_first",
    "least_forward", "pairs_in_window", "rows_in_one_piece", "shipped", "sizes_of", "strides", "visible_keys",
]  # fmt: skip

_HEAD_DIMS = (16, 32, 64, 128)
LARGEST_GRID = 65535
"""Programs along the second or third axis of a CUDA grid."""
LARGEST_BLOCK = 256
"""Rows or keys of a tile."""


@dataclass(frozen=True)
class AttentionSizes:
    """`heads` query heads share `kv_heads` key and value heads, group by group."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads that share one key head."""
        return self.heads // self.kv_heads

    @property
    def rows(self) -> int:
        """Queries of all heads of the batch."""
        return self.batch * self.heads * self.queries

    @property
    def kv_rows(self) -> int:
        return self.batch * self.kv_heads * self.keys


def sizes_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> AttentionSizes:
    """Return the sizes of q (batch, heads, queries, head_dim) and k, v (batch, kv_heads, keys, head_dim).

    Raises ValueError for arguments that the kernels cannot compute.
    """
    launching.require_tensors(q=q, k=k, v=v)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        launching.require_dimensions(name, tensor, "batch, heads, sequence, head_dim")
    batch, heads, queries, head_dim = q.shape
    kv_heads, keys = k.shape[1:3]
    launching.require_shape("k", k, (batch, kv_heads, keys, head_dim), "batch and head_dim of q")
    launching.require_shape("v", v, tuple(k.shape), "the shape of k")
    launching.require_head_dim(head_dim, _HEAD_DIMS)
    launching.require_divides("kv_heads", kv_heads, "heads", heads)
    for name, size in (("batch", batch), ("heads", heads)):
        if size > LARGEST_GRID:
            raise ValueError(f"{name} = {size}: expected at most {LARGEST_GRID}, an axis of the grid; split the batch")
    if not 0 < scale < math.inf:
        raise ValueError(f"softmax_scale = {scale}: expected a positive number; leave it out for 1/√head_dim")
    return AttentionSizes(batch, heads, kv_heads, queries, keys, head_dim)


def rows_in_one_piece(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return these tensors, (…, sequence, head_dim), each copied if the elements of a row do not lie side by side, or
    if rows are so far apart that the offsets within a tile exceed 32 bits. All other strides are left to the kernels.
    """

    def whole(tensor: torch.Tensor) -> bool:
        return tensor.stride(-1) == 1 and tensor.stride(-2) * LARGEST_BLOCK <= launching.LARGEST_INT32

    return tuple(tensor if whole(tensor) else tensor.contiguous() for tensor in tensors)


def strides(*tensors: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of batch, head and sequence, in elements, one tensor after the other."""
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:3])


def least_forward(sizes: AttentionSizes, pairs: int, bytes_per_element: float) -> Work:
    """Return the least work of fused attention: Q, K, V read once, the output and 4 bytes of log-sum-exp per row
    written.

    `pairs` of query and key attend in each head. FLOPs of a pair: 4·head_dim for the two products and 6 for scale and
    softmax.
    """
    elements = 2 * (sizes.rows + sizes.kv_rows) * sizes.head_dim
    flops = (4 * sizes.head_dim + 6) * sizes.batch * sizes.heads * pairs
    return Work(elements * bytes_per_element + 4 * sizes.rows, flops)


def pairs_in_window(length: int, window: int) -> int:
    """Count the pairs (i, j) with i − window < j ≤ i, for all i: Σ min(i + 1, window)."""
    window = min(window, length)
    return length * window - window * (window - 1) // 2


def cost(sizes: AttentionSizes, bytes_per_element: float = 2, *, causal: bool = False) -> Work:
    """Return `least_forward` of full or causal attention."""
    return least_forward(sizes, visible_pairs(sizes.queries, sizes.keys, causal), bytes_per_element)


class AttentionNode(torch.autograd.Function):
    """Differentiable attention out of two launchers, of which the second recomputes the scores.

    forward(inputs, *options) → (output, lse); backward(inputs, output, lse, grad_output, *options) → gradients of the
    inputs.
    """

    @staticmethod
    def forward(
        ctx: Any, forward: Callable[..., Any], backward: Callable[..., Any], options: tuple, *inputs: torch.Tensor
    ) -> torch.Tensor:
        output, lse = forward(inputs, *options)
        ctx.run, ctx.options = backward, options
        ctx.save_for_backward(output, lse, *inputs)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        output, lse, *inputs = ctx.saved_tensors
        return None, None, None, *ctx.run(tuple(inputs), output, lse, grad_output, *ctx.options)


@dataclass(frozen=True)
class Shipped:
    """The tiles of the three kernels: for the output, for the gradient of q, and for those of k and v. Rows are always
    queries."""

    forward: Tiles
    grad_q: Tiles
    grad_k_v: Tiles


_SHIPPED: Mapping[str, Mapping[int, Shipped]] = {
    "sm_80": {
        64: Shipped(Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(32, 128, 8, 2)),
        128: Shipped(Tiles(128, 64, 8, 3), Tiles(128, 32, 8, 2), Tiles(64, 64, 8, 2)),
    },
    "sm_90": {
        64: Shipped(Tiles(128, 64, 8, 4), Tiles(128, 128, 8, 3), Tiles(64, 128, 8, 3)),
        128: Shipped(Tiles(128, 128, 8, 3), Tiles(128, 64, 8, 3), Tiles(64, 128, 8, 3)),
    },
    "sm_100": {
        64: Shipped(Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 3), Tiles(64, 128, 8, 3)),
        128: Shipped(Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 3), Tiles(64, 128, 8, 3)),
    },
    "gfx942": {
        64: Shipped(Tiles(128, 64, 8, 1), Tiles(128, 64, 8, 1), Tiles(64, 128, 8, 1)),
        128: Shipped(Tiles(128, 64, 8, 1), Tiles(64, 64, 4, 1), Tiles(32, 64, 4, 1)),
    },
}
"""FlashAttention's tiles by target and head_dim (64: up to 64), for fp16 and bf16. All compile without spills and fit
the target's shared memory, causal or not, with ragged lengths or whole ones. On sm_90, 64 keys at a time leave a
multiprocessor registers for two programs; heads of 128 fill it with one, whose two warpgroups take turns at tensor
cores and exponentials."""

_EXACT = dict.fromkeys((64, 128), Shipped(Tiles(64, 16, 8, 1), Tiles(32, 32, 8, 1), Tiles(32, 32, 8, 1)))
_FLOAT32: Mapping[str, Mapping[int, Shipped]] = {
    **dict.fromkeys(("sm_80", "sm_90", "sm_100"), _EXACT),
    "gfx942": {**_EXACT, 128: replace(_EXACT[128], grad_q=Tiles(32, 16, 8, 1), grad_k_v=Tiles(32, 16, 8, 1))},
}
"""Float32 is multiplied in full, without tensor cores: small tiles are as good, and big ones spill."""


def shipped(dtype: torch.dtype, head_dim: int) -> Shipped:
    """Return FlashAttention's tiles for the current target."""
    return (_FLOAT32 if dtype == torch.float32 else _SHIPPED)[target()][max(head_dim, 64)]


@triton.jit
def visible_keys(first_query, queries, keys, BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr):
    """Return, for the tile of BLOCK_M queries from first_query on, the last key that each row sees (−1 or less for
    none), how many keys all rows see, and how many any row sees."""
    if CAUSAL:
        offset = first_query + keys - queries
        last_visible = tl.minimum(offset + tl.arange(0, BLOCK_M), keys - 1)
        seen_by_all = tl.maximum(tl.minimum(offset + 1, keys), 0)
        seen_by_any = tl.maximum(tl.minimum(offset + BLOCK_M, keys), 0)
    else:
        last_visible = tl.zeros((BLOCK_M,), tl.int32) + (keys - 1)
        seen_by_all = keys
        seen_by_any = keys
    return last_visible, seen_by_all, seen_by_any


@triton.jit
def heaviest_first(program, programs, CAUSAL: tl.constexpr):
    """Return the tile that this program takes. Under a causal mask the last tile sees most keys. It starts first, so
    that short ones fill the gaps at the end."""
    if CAUSAL:
        tile = programs - 1 - program
    else:
        tile = program
    return tile
