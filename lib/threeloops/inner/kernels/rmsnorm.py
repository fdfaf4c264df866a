"""RMSNorm: y = x / √(mean(x²) + ε) · weight, for each row.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
The kernel holds a row in registers, so that it is read once, and takes all sums in float32 whatever the row's type. The
weight is the same for all rows: a program reads it once and keeps it for several tiles of rows, because a program that
does one row of 4,096 asks for half as many bytes again (from the L2 cache: memory itself reads the weight once).
It also leaves the reciprocal root behind, 4 bytes a row, which saves the backward pass a reduction.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from threeloops.inner.costs import Work
from threeloops.inner.kernels import arguments
from threeloops.inner.kernels.long_rows import norm_long_rows
from threeloops.inner.kernels.rmsnorm_backward import rmsnorm_backward
from threeloops.inner.kernels.row_tiles import LONGEST_ROW, as_rows, row_tile, tiles_per_program


@triton.jit
def rmsnorm_kernel(
    x_ptr, weight_ptr, y_ptr, scale_ptr, rows, columns, x_row_stride, epsilon,
    TILES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)[None, :]
    weight = tl.load(weight_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
    first = tl.program_id(0).to(tl.int64) * TILES * ROWS
    for tile in range(TILES):
        row = first + tile * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < columns)
        x = tl.load(x_ptr + row[:, None] * x_row_stride + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / columns + epsilon)
        y = x * scale[:, None] * weight
        tl.store(y_ptr + row[:, None] * columns + column, y.to(y_ptr.dtype.element_ty), mask=inside)
        tl.store(scale_ptr + row, scale, mask=row < rows)


def rmsnorm(x: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
    """RMSNorm over the last dimension, computed in float32; differentiable in x and weight.

    Args:
        x: (..., columns) of float16, bfloat16 or float32. Rows may lie apart; a row whose elements do is copied first.
            A row of more than 16,384 elements is read twice, see `long_rows`.
        weight: (columns,), of a dtype of its own: float32 weights with bfloat16 activations are common.
        epsilon: keeps the root away from 0.

    Returns a contiguous tensor of x's shape and dtype. Rows and strides that are multiples of 16 bytes are moved 16
    bytes at a time; an odd row length turns each of those accesses into scalar ones.
    """
    return _RMSNorm.apply(x, weight, epsilon)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, epsilon):
        y, scale = rmsnorm_forward(x, weight, epsilon)
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return *rmsnorm_backward(dy, *ctx.saved_tensors), None


def rmsnorm_forward(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-6, *, tiles: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and 1 / √(mean(x²) + ε) of each row in float32, which `rmsnorm_backward` takes.

    `tiles` of rows a program share one reading of the weight; by default as many as leave enough programs.
    """
    arguments.require_tensors(x=x)
    arguments.require_dtypes(arguments.FLOATS, weight=weight)
    arguments.require_one_device(x=x, weight=weight)
    columns = arguments.require_columns("x", x)
    arguments.require_shape("weight", weight, (columns,), "one for each column of x")
    matrix, weight = as_rows(x), weight.contiguous()
    rows = matrix.shape[0]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    if columns > LONGEST_ROW:
        norm_long_rows(matrix, weight, None, epsilon, y, None, scale)
    elif rows:
        chosen = row_tile(columns)
        tiles = tiles or tiles_per_program(rows, columns)
        grid = (triton.cdiv(rows, tiles * chosen.constants["ROWS"]),)
        rmsnorm_kernel[grid](
            matrix, weight, y, scale, rows, columns, matrix.stride(0), epsilon, TILES=tiles, **chosen.options()
        )
    return y, scale


def reference(x: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def cost(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Reads x and the weight, writes y and a float32 a row. A square, an addition, two products an element."""
    return Work((2 * rows + 1) * columns * bytes_per_element + 4 * rows, 4 * rows * columns)
