"""Persistent matrix product: as many programs as multiprocessors, each making tile after tile.

Source: the persistent matrix multiplication tutorial of Triton, after CUTLASS's persistent kernels.

A grid with one program a tile leaves a multiprocessor idle at both ends of every tile: the pipeline of loads fills up,
and at last the tile is stored. A program that goes on to its next tile can load for it while the last one is still
being stored, and the grid has no tail of launches. Traffic is the same; only the order in time is new.
"""

from functools import partial

import torch
import triton
import triton.language as tl

from threeloops.inner.kernels.matmul.matmul import grouped_tile, multiply_tile, reference
from threeloops.inner.kernels.matmul.matrix_product import (
    Blocks,
    MatrixProduct,
    choose,
    cost,
    input_precision_of,
    multiprocessors,
    product_of,
    tile_traffic,
    tiles,
)

__all__ = ["cost", "persistent_matmul", "reference", "tile_traffic"]


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
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    programs: int | None = None,
    input_precision: str | None = None,
    block_m: int | None = None,
    block_n: int | None = None,
    block_k: int | None = None,
    group_m: int | None = None,
) -> torch.Tensor:
    """a @ b: (m, k) @ (k, n) → (m, n), like `matmul`, by `programs` programs.

    By default one for each multiprocessor of the GPU; in the interpreter, of the device that `target()` stands for:
    132 for the H100. Never more than there are tiles.
    """
    if programs is not None and programs < 1:
        raise ValueError(f"programs = {programs}: expected at least 1; leave it out for one a multiprocessor")
    precision = input_precision_of(a.dtype, input_precision)
    blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": group_m}
    return MatrixProduct.apply(a, b, partial(_multiply, precision=precision, programs=programs, blocks=blocks))


def _multiply(
    a: torch.Tensor, b: torch.Tensor, *, precision: str, programs: int | None, blocks: Blocks
) -> torch.Tensor:
    product = product_of(a, b, batched=False)
    c = a.new_empty(product.m, product.n)
    if product.is_empty:
        return c
    chosen = choose(a, b, product, precision, blocks, large=False)
    persistent_matmul_kernel[(min(programs or multiprocessors(a), tiles(product, chosen)),)](
        a, b, c, product.m, product.n, product.k, *a.stride(), *b.stride(), *c.stride(),
        K_IS_WHOLE=product.k % chosen.constants["BLOCK_K"] == 0,
        INPUT_PRECISION=precision,
        **chosen.options(),
    )  # fmt: skip
    return c
