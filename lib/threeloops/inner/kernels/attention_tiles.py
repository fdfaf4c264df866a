"""The tiles that the attention kernels are shipped with, for each target, head size and dtype.

All compile without spills and fit the target's shared memory, causal or not, with ragged lengths or whole ones.
"""

from dataclasses import replace

import torch

from threeloops.inner.kernels.configuration import Configuration, target

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
