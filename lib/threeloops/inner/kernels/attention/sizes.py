"""Sizes of one attention call, checked, and what its tiles cost.

The tiles that the attention kernels are shipped with, for each target, head size and dtype.

All compile without spills and fit the target's shared memory, causal or not, with ragged lengths or whole ones.

Which keys a tile of queries sees, for the attention kernels.

A causal mask is aligned at the last query and the last key, as in FlashAttention-2: of n queries and m keys, query i
sees keys 0 … i + m − n. So a single query after a long prefix sees all of it. With as many keys as queries this is the
usual lower triangle. Where n > m the first n − m queries see nothing.
"""

import math
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from threeloops.inner.costs import Work, visible_pairs
from threeloops.inner.kernels import launching
from threeloops.inner.kernels.launching import Configuration, target

HEAD_DIMS = (16, 32, 64, 128)
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
    launching.require_tensors(q=q, k=k, v=v)
    for name, each in (("q", q), ("k", k), ("v", v)):
        launching.require_dimensions(name, each, "batch, heads, sequence, head_dim")
    batch, heads, queries, head_dim = q.shape
    kv_heads, keys = k.shape[1:3]
    launching.require_shape("k", k, (batch, kv_heads, keys, head_dim), "batch and head_dim of q")
    launching.require_shape("v", v, tuple(k.shape), "the shape of k")
    launching.require_head_dim(head_dim, HEAD_DIMS)
    launching.require_divides("kv_heads", kv_heads, "heads", heads)
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


WIDE_HEAD = 128


def _tiles(block_m: int, block_n: int, num_warps: int, num_stages: int) -> Configuration:
    return Configuration({"BLOCK_M": block_m, "BLOCK_N": block_n}, num_warps, num_stages)


_FORWARD = {
    "sm_80": (_tiles(128, 64, 8, 3), _tiles(128, 64, 8, 3)),
    "sm_90": (_tiles(128, 64, 8, 4), _tiles(128, 128, 8, 3)),
    "sm_100": (_tiles(128, 64, 8, 2), _tiles(128, 64, 8, 3)),
    "gfx942": (_tiles(128, 64, 8, 1), _tiles(128, 64, 8, 1)),
}
"""fp16 and bf16, for heads up to 64 and of 128. On sm_90, 64 keys at a time leave a multiprocessor registers for two
programs; heads of 128 fill it with one, whose two warpgroups take turns at tensor cores and exponentials."""

_KEY_GRADIENT = {
    "sm_80": (_tiles(32, 128, 8, 2), _tiles(64, 64, 8, 2)),
    "sm_90": (_tiles(64, 128, 8, 3), _tiles(64, 128, 8, 3)),
    "sm_100": (_tiles(64, 128, 8, 3), _tiles(64, 128, 8, 3)),
    "gfx942": (_tiles(64, 128, 8, 1), _tiles(32, 64, 4, 1)),
}
_QUERY_GRADIENT = {
    "sm_80": (_tiles(128, 64, 8, 2), _tiles(128, 32, 8, 2)),
    "sm_90": (_tiles(128, 128, 8, 3), _tiles(128, 64, 8, 3)),
    "sm_100": (_tiles(128, 64, 8, 3), _tiles(128, 64, 8, 3)),
    "gfx942": (_tiles(128, 64, 8, 1), _tiles(64, 64, 4, 1)),
}
_FLOAT32_FORWARD = _tiles(64, 16, 8, 1)
_FLOAT32_BACKWARD = {
    **dict.fromkeys(("sm_80", "sm_90", "sm_100"), (_tiles(32, 32, 8, 1),) * 2),
    "gfx942": (_tiles(32, 32, 8, 1), _tiles(32, 16, 8, 1)),
}
"""Float32 is multiplied in full, without tensor cores: small tiles are as good, and big ones spill."""


def forward_tiles(
    head_dim: int, dtype: torch.dtype, block_m: int | None = None, block_n: int | None = None
) -> Configuration:
    """Tiles of the forward kernel, with the blocks that the caller gave in place of the shipped ones."""
    shipped = _FLOAT32_FORWARD if dtype == torch.float32 else _FORWARD[target()][head_dim >= WIDE_HEAD]
    given = {name: block for name, block in (("BLOCK_M", block_m), ("BLOCK_N", block_n)) if block is not None}
    for name, block in given.items():
        if not 16 <= block <= 256 or block & (block - 1):
            raise ValueError(f"{name.lower()} = {block}: expected a power of two from 16 to 256")
    return replace(shipped, constants={**shipped.constants, **given})


def key_gradient_tiles(head_dim: int, dtype: torch.dtype) -> Configuration:
    """Tiles of the kernel for dK and dV, which walks over BLOCK_M queries at a time."""
    shipped = _FLOAT32_BACKWARD if dtype == torch.float32 else _KEY_GRADIENT
    return shipped[target()][head_dim >= WIDE_HEAD]


def query_gradient_tiles(head_dim: int, dtype: torch.dtype) -> Configuration:
    """Tiles of the kernel for dQ."""
    shipped = _FLOAT32_BACKWARD if dtype == torch.float32 else _QUERY_GRADIENT
    return shipped[target()][head_dim >= WIDE_HEAD]


@triton.jit
def visible_keys(first_query, queries, keys, BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr):
    """For the tile of BLOCK_M queries from first_query on: the last key that each row sees (−1 or less for none), and
    how many keys the whole tile sees, and any row of it."""
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
    """The tile that this program takes. Under a causal mask the last tile sees most keys: it is started first, so that
    the short ones fill the gaps at the end."""
    if CAUSAL:
        tile = programs - 1 - program
    else:
        tile = program
    return tile
