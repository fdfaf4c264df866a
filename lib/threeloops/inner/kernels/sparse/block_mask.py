"""A block mask: for each block of queries the blocks of keys that it attends to, as lists that a kernel can walk.

A boolean for each pair of blocks says it all, but a program would have to read a whole row of them to find the few that
it visits. In compressed sparse rows (CSR), row starts and column indices, it reads just those. The kernel for the
gradients of keys walks the other way and takes the lists of the transposed mask.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from triton import cdiv

from threeloops.inner.kernels.attention.sizes import AttentionSizes
from threeloops.inner.kernels.launching import Tiles

__all__ = ["BlockMask", "Lists"]

_SMALLEST_BLOCK = 16


@dataclass(frozen=True)
class Lists:
    """Row r of head h visits the tiles columns[starts[n]] … columns[starts[n + 1] − 1], n = h · rows_per_head + r.

    int32, on the kernel's device. With one mask for all heads rows_per_head = 0, so every head finds the same lists.
    """

    starts: torch.Tensor
    columns: torch.Tensor
    rows_per_head: int


@dataclass(frozen=True, eq=False)
class BlockMask:
    """blocks[..., m, n]: whether queries m·block_size … see keys n·block_size …; one mask for all heads, (query blocks,
    key blocks), or one for each, (heads, query blocks, key blocks).

    causal: also, no query sees a later key: blocks above the diagonal are dropped, those on it are masked inside. The
    last blocks may be ragged. A query block that sees no keys has an output of 0.
    """

    blocks: torch.Tensor
    block_size: int
    causal: bool = False
    _lists: dict[tuple, Lists] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.blocks.dtype != torch.bool or self.blocks.ndim not in (2, 3):
            raise ValueError(
                f"blocks is {self.blocks.dtype} of shape {tuple(self.blocks.shape)}: expected booleans, (query blocks, "
                "key blocks) or (heads, query blocks, key blocks)"
            )
        if self.block_size < 1 or self.block_size % _SMALLEST_BLOCK:
            raise ValueError(
                f"block_size = {self.block_size}: expected a multiple of {_SMALLEST_BLOCK}, the smallest tile that "
                "tensor cores multiply; join or split blocks"
            )

    @cached_property
    def by_head(self) -> torch.Tensor:
        """(1 or heads, query blocks, key blocks) on the CPU. If causal, it lacks the blocks above the diagonal."""
        blocks = self.blocks.cpu() if self.blocks.ndim == 3 else self.blocks.cpu()[None]
        return blocks.tril() if self.causal else blocks

    def require_fits(self, sizes: AttentionSizes) -> None:
        """Check that this mask is for this many queries, keys and heads. Raises ValueError if not."""
        blocks = tuple(self.blocks.shape)
        expected = cdiv(sizes.queries, self.block_size), cdiv(sizes.keys, self.block_size)
        if blocks[-2:] != expected or blocks[:-2] not in ((), (sizes.heads,)):
            raise ValueError(
                f"mask has {blocks} blocks of {self.block_size}: expected {expected}, or {(sizes.heads, *expected)}, "
                f"for {sizes.queries} queries, {sizes.keys} keys and {sizes.heads} heads"
            )
        if self.causal and sizes.queries != sizes.keys:
            raise ValueError(f"{sizes.queries} queries and {sizes.keys} keys: expected as many under a causal mask")

    def divided(self, tiles: Tiles) -> Tiles:
        """Return these tiles, cut so that none crosses two blocks, with four warps if cut to 32 × 32 or less.

        Blocks of less than 64 make tiles too short for the wgmma instructions of sm_90, which take 64 rows at a time.
        """
        largest = self.block_size & -self.block_size
        rows, keys = min(tiles.rows, largest), min(tiles.keys, largest)
        cut = rows * keys < tiles.rows * tiles.keys
        return replace(tiles, rows=rows, keys=keys, num_warps=4 if cut and rows * keys <= 1024 else tiles.num_warps)

    def by_tiles(self, sizes: AttentionSizes, tiles: Tiles) -> torch.Tensor:
        """Return which tiles are visited, (1 or heads, tiles of queries, tiles of keys)."""
        visited = self.by_head.repeat_interleave(self.block_size // tiles.rows, dim=1)
        visited = visited.repeat_interleave(self.block_size // tiles.keys, dim=2)
        visited = visited[:, : cdiv(sizes.queries, tiles.rows), : cdiv(sizes.keys, tiles.keys)]
        if self.causal:
            end_query = torch.arange(1, visited.shape[1] + 1)[:, None] * tiles.rows
            visited = visited & (torch.arange(visited.shape[2])[None, :] * tiles.keys < end_query)
        return visited

    def by_position(self, queries: int, keys: int) -> torch.Tensor:
        """Return which pairs attend, (1, 1 or heads, queries, keys)."""
        visible = self.by_head[None].repeat_interleave(self.block_size, -2).repeat_interleave(self.block_size, -1)
        visible = visible[..., :queries, :keys]
        return visible.tril() if self.causal else visible

    def lists(self, sizes: AttentionSizes, tiles: Tiles, device: torch.device, *, transposed: bool = False) -> Lists:
        """Return the tiles of keys for each tile of queries, or, if transposed, the tiles of queries for each tile of
        keys. They are built once and kept, since all layers of a model use them in every step."""
        key = (sizes.queries, sizes.keys, tiles.rows, tiles.keys, device, transposed)
        if key not in self._lists:
            visited = self.by_tiles(sizes, tiles)
            visited = visited.mT if transposed else visited
            starts = torch.zeros(visited.shape[0] * visited.shape[1] + 1, dtype=torch.int32)
            starts[1:] = visited.sum(2).flatten().cumsum(0)
            columns = visited.nonzero()[:, 2].to(torch.int32)
            rows_per_head = visited.shape[1] if self.blocks.ndim == 3 else 0
            self._lists[key] = Lists(starts.to(device), columns.to(device), rows_per_head)
        return self._lists[key]
