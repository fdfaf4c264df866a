"""Sizes of one attention call, checked, and what its tiles cost."""

import math
from dataclasses import dataclass

import torch

from threeloops.inner.costs import Work, visible_pairs
from threeloops.inner.kernels import arguments

HEAD_DIMS = (16, 32, 64, 128)
LOG2_E = math.log2(math.e)
LARGEST_GRID = 65535
"""Of the second and third axis of a CUDA grid."""


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
    def no_queries(self) -> bool:
        return self.batch * self.heads * self.queries == 0

    @property
    def no_keys(self) -> bool:
        return self.batch * self.kv_heads * self.keys == 0


def sizes_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> AttentionSizes:
    """The sizes of q (batch, heads, queries, head_dim) and k, v (batch, kv_heads, keys, head_dim).

    Raises ValueError for what the kernels cannot compute.
    """
    arguments.require_tensors(q=q, k=k, v=v)
    for name, each in (("q", q), ("k", k), ("v", v)):
        arguments.require_dimensions(name, each, "batch, heads, sequence, head_dim")
    batch, heads, queries, head_dim = q.shape
    kv_heads, keys = k.shape[1:3]
    arguments.require_shape("k", k, (batch, kv_heads, keys, head_dim), "batch and head_dim of q")
    arguments.require_shape("v", v, tuple(k.shape), "the shape of k")
    arguments.require_head_dim(head_dim, HEAD_DIMS)
    arguments.require_divides("kv_heads", kv_heads, "heads", heads)
    for name, size in (("batch", batch), ("heads", heads)):
        if size > LARGEST_GRID:
            raise ValueError(f"{name} = {size}: expected at most {LARGEST_GRID}, an axis of the grid; split the batch")
    if not 0 < scale < math.inf:
        raise ValueError(f"softmax_scale = {scale}: expected a positive number; leave it out for 1/√head_dim")
    return AttentionSizes(batch, heads, kv_heads, queries, keys, head_dim)


def rows_in_one_piece(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The kernels take any stride but that of head_dim, which must be 1: tensors with another are copied."""
    return tuple(each if each.stride(-1) == 1 else each.contiguous() for each in tensors)


def cost(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    head_dim: int,
    bytes_per_element: float = 2,
    *,
    kv_heads: int | None = None,
    causal: bool = False,
) -> Work:
    """The least that fused attention takes: Q, K, V read once, the output and 4 bytes of log-sum-exp a row written.

    FLOPs of the pairs that attend: 4·head_dim for the two products and 6 for scale and softmax.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    outer = 2 * batch * (heads * queries + kv_heads * keys) * head_dim * bytes_per_element
    pairs = batch * heads * visible_pairs(queries, keys, causal)
    return Work(outer + 4 * batch * heads * queries, (4 * head_dim + 6) * pairs)
