"""LayerNorm: y = (x − mean(x)) / √(var(x) + ε) · weight + bias, for each row.

Source: Ba, Kiros and Hinton, "Layer Normalization" (2016).
The row is read once and held in registers, so the variance can be the mean of (x − mean)², taken after the mean is
known: the one-pass formula mean(x²) − mean(x)² subtracts two large numbers and loses the digits of rows far from zero.
Weight and bias are read once a program and serve several tiles of rows, as in `rmsnorm`. Mean and reciprocal deviation,
8 bytes a row, are kept for the backward pass.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from threeloops.inner import costs
from threeloops.inner.costs import Work
from threeloops.inner.kernels import arguments
from threeloops.inner.kernels.layernorm_backward import layernorm_backward
from threeloops.inner.kernels.long_rows import norm_long_rows
from threeloops.inner.kernels.row_tiles import LONGEST_ROW, as_rows, row_tile, tiles_per_program


@triton.jit
def layernorm_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, scale_ptr, rows, columns, x_row_stride, epsilon,
    TILES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)[None, :]
    weight = tl.load(weight_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
    first = tl.program_id(0).to(tl.int64) * TILES * ROWS
    for tile in range(TILES):
        row = first + tile * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < columns)
        x = tl.load(x_ptr + row[:, None] * x_row_stride + column, mask=inside, other=0.0).to(tl.float32)
        mean = tl.sum(x, axis=1) / columns
        centred = tl.where(column < columns, x - mean[:, None], 0.0)
        scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / columns + epsilon)
        y = centred * scale[:, None] * weight + bias
        tl.store(y_ptr + row[:, None] * columns + column, y.to(y_ptr.dtype.element_ty), mask=inside)
        tl.store(mean_ptr + row, mean, mask=row < rows)
        tl.store(scale_ptr + row, scale, mask=row < rows)


def layernorm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float = 1e-5) -> torch.Tensor:
    """LayerNorm over the last dimension, computed in float32; differentiable in x, weight and bias.

    Args:
        x: (..., columns) of float16, bfloat16 or float32. Rows may lie apart; a row whose elements do is copied first.
            A row of more than 16,384 elements is read twice, see `long_rows`.
        weight, bias: (columns,), both of one dtype, which may differ from x's.
        epsilon: added to the variance.

    Returns a contiguous tensor of x's shape and dtype. Rows and strides that are multiples of 16 bytes are moved 16
    bytes at a time; an odd row length turns each of those accesses into scalar ones.
    """
    return _LayerNorm.apply(x, weight, bias, epsilon)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, epsilon):
        y, mean, scale = layernorm_forward(x, weight, bias, epsilon)
        ctx.save_for_backward(x, weight, mean, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return *layernorm_backward(dy, *ctx.saved_tensors), None


def layernorm_forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float = 1e-5, *, tiles: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output, and mean and 1 / √(var + ε) of each row in float32, which `layernorm_backward` takes.

    `tiles` of rows a program share one reading of weight and bias; by default as many as leave enough programs.
    """
    arguments.require_tensors(x=x)
    arguments.require_tensors(weight=weight, bias=bias)
    arguments.require_one_device(x=x, weight=weight)
    columns = arguments.require_columns("x", x)
    arguments.require_shape("weight", weight, (columns,), "one for each column of x")
    arguments.require_shape("bias", bias, (columns,), "one for each column of x")
    matrix, weight, bias = as_rows(x), weight.contiguous(), bias.contiguous()
    rows = matrix.shape[0]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, scale = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    if columns > LONGEST_ROW:
        norm_long_rows(matrix, weight, bias, epsilon, y, mean, scale)
    elif rows:
        chosen = row_tile(columns)
        tiles = tiles or tiles_per_program(rows, columns)
        grid = (triton.cdiv(rows, tiles * chosen.constants["ROWS"]),)
        layernorm_kernel[grid](
            matrix, weight, bias, y, mean, scale, rows, columns, matrix.stride(0), epsilon,
            TILES=tiles, **chosen.options(),
        )  # fmt: skip
    return y, mean, scale


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float = 1e-5) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + epsilon) * weight + bias


def cost(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """LayerNorm's least, and the mean and scale of each row, two float32, for the backward pass."""
    return costs.layernorm(rows, columns, bytes_per_element) + Work(8 * rows, 0)
