"""Persistent matrix product: as many programs as multiprocessors, each making tile after tile.

Source: the persistent matrix multiplication tutorial of Triton, after CUTLASS's persistent kernels.

A grid with one program per tile leaves a multiprocessor idle at both ends of every tile, while the pipeline of loads
fills up and while the tile is stored. A program that continues with its next tile can load for it while the last one is
still being stored. Traffic is the same, and only the order in time changes.
"""

from functools import partial
from typing import Unpack

import torch
import triton
import triton.language as tl

from threeloops.inner.kernels.launching import Configuration, multiprocessors
from threeloops.inner.kernels.matmul.matmul import grouped_tile, multiply_tile
from threeloops.inner.kernels.matmul.matrix_product import Options, multiply, tiles

__all__ = ["launch", "persistent_matmul", "persistent_matmul_kernel"]


@triton.jit
def persistent_matmul_kernel(
    a, b, c, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    K_IS_WHOLE: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=True):
        row, column = grouped_tile(tile, tiles_m, tiles_n, GROUP_M)
        multiply_tile(
            a, b, c, row, column, m, n, k, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
            BLOCK_M, BLOCK_N, BLOCK_K, K_IS_WHOLE, INPUT_PRECISION,
        )  # fmt: skip


def persistent_matmul(
    a: torch.Tensor, b: torch.Tensor, *, programs: int | None = None, **options: Unpack[Options]
) -> torch.Tensor:
    """Compute a @ b: (m, k) @ (k, n) → (m, n), like `matmul`, by `programs` programs, never more than there are tiles.

    By default one per multiprocessor of the GPU; in the interpreter, of the device that `target()` stands for: 132 for
    the H100.
    """
    if programs is not None and programs < 1:
        raise ValueError(f"programs = {programs}: expected at least 1; leave it out for one per multiprocessor")
    return multiply(partial(launch, programs=programs), a, b, False, False, **options)


def launch(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, precision: str, chosen: Configuration, programs: int | None
) -> None:
    persistent_matmul_kernel[(min(programs or multiprocessors(), tiles(c, chosen)),)](
        a, b, c, *c.shape, a.shape[1], *a.stride(), *b.stride(), *c.stride(),
        K_IS_WHOLE=a.shape[1] % chosen.constants["BLOCK_K"] == 0,
        INPUT_PRECISION=precision,
        **chosen.options(),
    )  # fmt: skip
