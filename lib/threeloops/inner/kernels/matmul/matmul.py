"""Matrix product, tile by tile: C = A B with (m, k) @ (k, n) → (m, n).

Source: the matrix multiplication tutorial of Triton (Tillet et al.), and Goto and van de Geijn, "Anatomy of
High-Performance Matrix Multiplication" (2008), for the idea of tiles.

One program makes one BLOCK_M × BLOCK_N tile of C: it walks along k and keeps the sums in registers as float32. A is
then read once for each column of tiles, B once for each row of tiles, so bigger tiles mean less traffic. Programs that
run at the same time should share what they read: GROUP_M rows of tiles are taken together, column by column, so that
their rows of A and columns of B are still in the L2 cache when a neighbour asks for them.
"""

from typing import Unpack

import torch
import triton
import triton.language as tl

from threeloops.inner import costs
from threeloops.inner.kernels.launching import Configuration
from threeloops.inner.kernels.matmul.matrix_product import Options, multiply, tiles

__all__ = ["cost", "grouped_tile", "launch", "matmul", "matmul_kernel", "multiply_tile", "reference"]


@triton.jit
def grouped_tile(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Return the row and column of the tile-th tile, in the order down GROUP_M rows, then to the next column, then to
    the next group."""
    tiles_in_group = GROUP_M * tiles_n
    first_row = (tile // tiles_in_group) * GROUP_M
    rows = tl.minimum(tiles_m - first_row, GROUP_M)
    within = tile % tiles_in_group
    return first_row + within % rows, within // rows


@triton.jit
def multiply_tile(
    a, b, c, row, column, m, n, k,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    K_IS_WHOLE: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute tile (row, column) of C and store it. Only the tile's start needs 64 bits, not each offset within it."""
    first_row = (row * BLOCK_M).to(tl.int64)
    first_column = (column * BLOCK_N).to(tl.int64)
    rows = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    row_exists = rows[:, None] < m - row * BLOCK_M
    column_exists = columns[None, :] < n - column * BLOCK_N

    a_tile = a + first_row * stride_am + (rows[:, None] * stride_am + inner[None, :] * stride_ak)
    b_tile = b + first_column * stride_bn + (inner[:, None] * stride_bk + columns[None, :] * stride_bn)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        if K_IS_WHOLE:
            a_values = tl.load(a_tile, mask=row_exists, other=0.0)
            b_values = tl.load(b_tile, mask=column_exists, other=0.0)
        else:
            a_values = tl.load(a_tile, mask=row_exists & (inner[None, :] < k - start), other=0.0)
            b_values = tl.load(b_tile, mask=column_exists & (inner[:, None] < k - start), other=0.0)
        total = tl.dot(a_values, b_values, total, input_precision=INPUT_PRECISION)
        a_tile += BLOCK_K * stride_ak
        b_tile += BLOCK_K * stride_bk

    c_tile = c + first_row * stride_cm + first_column * stride_cn
    c_tile += rows[:, None] * stride_cm + columns[None, :] * stride_cn
    tl.store(c_tile, total.to(c.dtype.element_ty), mask=row_exists & column_exists)


@triton.jit
def matmul_kernel(
    a, b, c, m, n, k,
    stride_a, stride_am, stride_ak, stride_b, stride_bk, stride_bn, stride_c, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    K_IS_WHOLE: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    row, column = grouped_tile(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP_M)
    matrix = tl.program_id(1).to(tl.int64)
    multiply_tile(
        a + matrix * stride_a, b + matrix * stride_b, c + matrix * stride_c, row, column, m, n, k,
        stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
        BLOCK_M, BLOCK_N, BLOCK_K, K_IS_WHOLE, INPUT_PRECISION,
    )  # fmt: skip


def matmul(a: torch.Tensor, b: torch.Tensor, **options: Unpack[Options]) -> torch.Tensor:
    """Compute a @ b: (m, k) @ (k, n) → (m, n), or (batch, m, k) @ (batch, k, n) → (batch, m, n), in the dtype of a and
    b.

    fp16, bf16 or float32, summed in float32. Any strides are allowed, so a transposed factor costs nothing. `options`
    choose tiles and precision (see `Options`). Differentiable. Raises ValueError for tensors that cannot be multiplied.
    """
    return multiply(launch, a, b, True, True, **options)


def launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, precision: str, chosen: Configuration) -> None:
    matrices = c.shape[:-2].numel()
    strides = [(matrix.stride(0) if matrix.ndim == 3 else 0, *matrix.stride()[-2:]) for matrix in (a, b, c)]
    matmul_kernel[(tiles(c, chosen) // matrices, matrices)](
        a, b, c, *c.shape[-2:], a.shape[-1], *strides[0], *strides[1], *strides[2],
        K_IS_WHOLE=a.shape[-1] % chosen.constants["BLOCK_K"] == 0,
        INPUT_PRECISION=precision,
        **chosen.options(),
    )  # fmt: skip


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Compute the same in PyTorch."""
    return a @ b


cost = costs.matmul
