"""The vocabulary of the sparse attention kernels: the tiles that a program works on, and what all tiles add up to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from threeloops.inner.kernels.configuration import Configuration

LOG2_E = math.log2(math.e)
"""Powers of two are what the hardware computes: exp(x) = exp2(x · log2(e)), and the factor disappears in the scale."""


@dataclass(frozen=True)
class Tiles:
    """Rows and keys of a program's tiles, its warps and the depth of its pipeline of loads."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int

    def configuration(self, constants: Mapping[str, int]) -> Configuration:
        """With these compile-time constants."""
        return Configuration(constants, self.num_warps, self.num_stages)

    def options(self, head_dim: int) -> dict[str, int]:
        """Keyword arguments of a launch whose rows are BLOCK_M queries and whose keys are BLOCK_N."""
        return self.configuration({"HEAD_DIM": head_dim, "BLOCK_M": self.rows, "BLOCK_N": self.keys}).options()


@dataclass(frozen=True)
class TiledTraffic:
    """Of one launch: tiles visited by all programs together, bytes asked for, FLOPs of the tiles' matrix products.

    Bytes asked for are those of rows that exist, each time that a program loads them, whatever a cache then catches.
    Products are counted whole, with what a mask hides and with the zeros that fill a tile past the end.
    """

    tiles: int
    loaded: int
    stored: int
    dot_flops: int
