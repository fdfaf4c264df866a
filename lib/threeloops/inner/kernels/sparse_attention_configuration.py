"""What the windowed and the block-sparse kernels are shipped with, and how they are handed tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from threeloops.inner.kernels.arguments import LARGEST_INT32
from threeloops.inner.kernels.configuration import target
from threeloops.inner.kernels.tiles import Tiles

LARGEST_TILE = 128


@dataclass(frozen=True)
class Shipped:
    """The tiles of the three kernels: the output; the gradient of q; those of k and v. Rows are always queries."""

    forward: Tiles
    grad_q: Tiles
    grad_k_v: Tiles


_SM_80 = {
    64: Shipped(Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 1), Tiles(32, 64, 8, 1)),
    128: Shipped(Tiles(128, 32, 8, 2), Tiles(64, 64, 8, 1), Tiles(32, 64, 8, 1)),
}
_SM_90 = {
    64: Shipped(Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(64, 128, 8, 1)),
    128: Shipped(Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(32, 128, 8, 2)),
}
_SM_100 = {
    64: Shipped(Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 1), Tiles(64, 128, 8, 1)),
    128: Shipped(Tiles(128, 64, 8, 2), Tiles(128, 64, 8, 2), Tiles(64, 128, 8, 1)),
}
_GFX942 = {
    64: Shipped(Tiles(128, 64, 8, 1), Tiles(128, 64, 8, 1), Tiles(64, 64, 4, 1)),
    128: Shipped(Tiles(128, 64, 8, 1), Tiles(64, 32, 4, 1), Tiles(32, 64, 4, 1)),
}
SHIPPED: Mapping[str, Mapping[int, Shipped]] = {
    "sm_80": _SM_80,
    "sm_90": _SM_90,
    "sm_100": _SM_100,
    "gfx942": _GFX942,
}
"""By target and head_dim (64: up to 64), for 16 bits. Each compiles without spills and fits into shared memory."""

_EXACT = {
    64: Shipped(Tiles(32, 32, 8, 1), Tiles(32, 32, 8, 1), Tiles(16, 32, 8, 1)),
    128: Shipped(Tiles(32, 32, 8, 1), Tiles(16, 16, 8, 1), Tiles(16, 32, 8, 1)),
}
FLOAT32: Mapping[str, Mapping[int, Shipped]] = {
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
    """The tiles for the current target."""
    return (FLOAT32 if dtype == torch.float32 else SHIPPED)[target()][max(head_dim, 64)]


def with_whole_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if the elements of a row lie side by side and rows less than 2³¹ / 128 elements apart, since
    offsets within a tile have 32 bits; else a contiguous copy."""
    whole = tensor.stride(-1) == 1 and 0 <= tensor.stride(-2) * LARGEST_TILE <= LARGEST_INT32
    return tensor if whole else tensor.contiguous()


def strides(*tensors: torch.Tensor) -> tuple[int, ...]:
    """Of batch, head and sequence, in elements, one tensor after the other."""
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:3])
