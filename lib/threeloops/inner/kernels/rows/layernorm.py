"""LayerNorm: y = (x − mean(x)) / √(var(x) + ε) · weight + bias, for each row.

Source: Ba, Kiros and Hinton, "Layer Normalization" (2016).
The row is read once and held in registers, so the variance can be the mean of (x − mean)², taken after the mean is
known: the one-pass formula mean(x²) − mean(x)² subtracts two large numbers and loses the digits of rows far from zero.
Weight and bias are read once a program and serve several tiles of rows, as in `rmsnorm`. Mean and reciprocal deviation,
8 bytes a row, are kept for the backward pass.

The gradients of LayerNorm, in one pass over x and dy.

With x̂ = (x − mean)·scale and g = weight·dy:  dx = scale·(g − x̂·mean(x̂·g) − mean(g)),  dweight = Σ over rows of
dy·x̂, dbias = Σ over rows of dy. As in `rmsnorm_backward`, a program walks down its share of the rows with the next
rows' loads in flight, adds the two column sums up on the way, and a second small kernel adds up what programs leave.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from threeloops.inner import costs
from threeloops.inner.costs import Work
from threeloops.inner.kernels import launching
from threeloops.inner.kernels.rows.tiles import (
    LONGEST_ROW,
    LONGEST_ROW_OF_TWO,
    as_rows,
    norm_gradients_long_rows,
    norm_long_rows,
    partial_sums,
    partial_sums_cost,
    row_tile,
    row_tile_of_two,
    share_rows,
    tiles_per_program,
)


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
    launching.require_tensors(x=x)
    launching.require_tensors(weight=weight, bias=bias)
    launching.require_one_device(x=x, weight=weight)
    columns = launching.require_columns("x", x)
    launching.require_shape("weight", weight, (columns,), "one for each column of x")
    launching.require_shape("bias", bias, (columns,), "one for each column of x")
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


@triton.jit
def layernorm_backward_kernel(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, scale_ptr, dx_ptr, dweight_ptr, dbias_ptr,
    rows, columns, dy_row_stride, x_row_stride, tiles,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)[None, :]
    weight = tl.load(weight_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
    dweight = tl.zeros([ROWS, BLOCK], tl.float32)
    dbias = tl.zeros([ROWS, BLOCK], tl.float32)
    first = tl.program_id(0).to(tl.int64) * tiles * ROWS
    for tile in tl.range(0, tiles, num_stages=STAGES):
        row = first + tile * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (column < columns)
        x = tl.load(x_ptr + row * x_row_stride + column, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * dy_row_stride + column, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + row, mask=row < rows, other=0.0)
        scale = tl.load(scale_ptr + row, mask=row < rows, other=0.0)
        normalised = (x - mean) * scale
        g = weight * dy  # 0 outside the row, so that what lies there adds nothing to the sums
        mean_of_product = tl.sum(normalised * g, axis=1)[:, None] / columns
        mean_of_g = tl.sum(g, axis=1)[:, None] / columns
        dx = scale * (g - normalised * mean_of_product - mean_of_g)
        tl.store(dx_ptr + row * columns + column, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        dweight += dy * normalised
        dbias += dy
    column = tl.arange(0, BLOCK)
    position = tl.program_id(0) * columns + column
    tl.store(dweight_ptr + position, tl.sum(dweight, axis=0), mask=column < columns)
    tl.store(dbias_ptr + position, tl.sum(dbias, axis=0), mask=column < columns)


def layernorm_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of x (its shape and dtype, contiguous), weight and bias, these summed in float32, the same every run.

    Args:
        dy: gradient of the output, the shape and dtype of x.
        x, weight: the inputs of `layernorm`.
        mean, scale: mean and 1 / √(var + ε) of each row, (rows,) float32, as `layernorm_forward` returns them.
    """
    launching.require_tensors(dy=dy, x=x)
    launching.require_one_device(x=x, weight=weight, mean=mean, scale=scale)
    launching.require_shape("dy", dy, x.shape, "the shape of x")
    columns = launching.require_columns("x", x)
    dy, matrix, weight = as_rows(dy), as_rows(x), weight.contiguous()
    rows = matrix.shape[0]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not rows:
        return dx, torch.zeros_like(weight), torch.zeros_like(weight)
    if columns > LONGEST_ROW_OF_TWO:
        dweight, dbias = norm_gradients_long_rows(dy, matrix, weight, mean, scale, dx)
        return dx, dweight, dbias
    chosen = row_tile_of_two(columns, x.element_size())
    programs, tiles = share_rows(rows, chosen.constants["ROWS"])
    dweight, dbias = (torch.empty((programs, columns), dtype=torch.float32, device=x.device) for _ in range(2))
    layernorm_backward_kernel[(programs,)](
        dy, matrix, weight, mean, scale, dx, dweight, dbias,
        rows, columns, dy.stride(0), matrix.stride(0), tiles, **chosen.options(),
    )  # fmt: skip
    return dx, *(partial_sums(each, weight.dtype) for each in (dweight, dbias))


def backward_reference(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mean, scale = (each.to(x.dtype).reshape(*x.shape[:-1], 1) for each in (mean, scale))
    normalised, g = (x - mean) * scale, weight * dy
    dx = scale * (g - normalised * (normalised * g).mean(-1, keepdim=True) - g.mean(-1, keepdim=True))
    columns = x.shape[-1]
    return dx, (dy * normalised).reshape(-1, columns).sum(0), dy.reshape(-1, columns).sum(0)


def backward_cost(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Reads dy, x, the weight and two float32 a row, writes dx; and two sets of partial sums out and in again."""
    chosen = row_tile_of_two(columns, int(bytes_per_element))
    programs, _ = share_rows(rows, chosen.constants["ROWS"])
    rowwise = Work((3 * rows + 1) * columns * bytes_per_element + 8 * rows, 13 * rows * columns)
    return rowwise + 2 * partial_sums_cost(programs, columns, bytes_per_element)
