"""The tiles that the attention kernels are shipped with, for each target, head size and dtype.

Each compiles without spills and fits the target's shared memory. Float32 is multiplied in full, without tensor cores,
and its rows are twice as long: it takes small tiles.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from threeloops.inner.kernels.configuration import Configuration, target

LARGEST_BLOCK = 256


def tiles(block_m: int, block_n: int, num_warps: int, num_stages: int) -> Configuration:
    return Configuration({"BLOCK_M": block_m, "BLOCK_N": block_n}, num_warps, num_stages)


_FULL = tiles(32, 32, 8, 1)
_FORWARD: Mapping[str, Configuration] = {
    "sm_80": tiles(128, 64, 8, 2),
    "sm_90": tiles(128, 64, 8, 2),
    "sm_100": tiles(128, 64, 8, 2),
    "gfx942": tiles(128, 64, 8, 1),
}
_QUERY_GRADIENT: Mapping[bool, Configuration] = {False: tiles(128, 64, 8, 1), True: tiles(128, 32, 8, 1)}
_KEY_GRADIENT: Mapping[bool, Configuration] = {False: tiles(64, 64, 8, 1), True: tiles(32, 64, 8, 1)}
"""By whether head_dim is 128."""


def forward_tiles(
    head_dim: int, dtype: torch.dtype, block_m: int | None = None, block_n: int | None = None
) -> Configuration:
    """The forward kernel's, with the blocks that the caller gave in their place. Raises ValueError for such a block."""
    shipped = _FULL if dtype == torch.float32 else _FORWARD[target()]
    given = {name: block for name, block in (("BLOCK_M", block_m), ("BLOCK_N", block_n)) if block is not None}
    for name, block in given.items():
        if not 16 <= block <= LARGEST_BLOCK or block & (block - 1):
            raise ValueError(f"{name.lower()} = {block}: expected a power of two from 16 to {LARGEST_BLOCK}")
    return replace(shipped, constants={**shipped.constants, **given})


def query_gradient_tiles(head_dim: int, dtype: torch.dtype) -> Configuration:
    """Those of the kernel that sums dQ: it keeps BLOCK_M queries and walks over the keys."""
    return _FULL if dtype == torch.float32 else _QUERY_GRADIENT[head_dim == 128]


def key_gradient_tiles(head_dim: int, dtype: torch.dtype) -> Configuration:
    """Those of the kernel that sums dK and dV: it keeps BLOCK_N keys and walks over the queries."""
    return _FULL if dtype == torch.float32 else _KEY_GRADIENT[head_dim == 128]
