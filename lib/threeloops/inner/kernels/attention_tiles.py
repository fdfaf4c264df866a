"""The tiles that the attention kernels are shipped with, for each target, head size and dtype."""

import torch

from threeloops.inner.kernels.configuration import Configuration, target


def tiles(block_m: int, block_n: int, num_warps: int, num_stages: int) -> Configuration:
    return Configuration({"BLOCK_M": block_m, "BLOCK_N": block_n}, num_warps, num_stages)


def forward_tiles(head_dim, dtype, block_m=None, block_n=None):
    return tiles(block_m or 128, block_n or 64, 8, 3)


def key_gradient_tiles(head_dim, dtype):
    return tiles(64, 128, 8, 2)


def query_gradient_tiles(head_dim, dtype):
    return tiles(128, 64, 8, 2)
