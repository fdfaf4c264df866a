"""RMSNorm: y = x / √(mean(x²) + ε) · weight, for each row.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
The kernel holds a row in registers, so that it is read once, and takes all sums in float32 whatever the row's type. The
weight is the same for all rows: a program reads it once and keeps it for several tiles of rows, because a program that
does one row of 4,096 asks for half as many bytes again (from the L2 cache: memory itself reads the weight once).
It also leaves the reciprocal root behind, 4 bytes a row, which saves the backward pass a reduction.

The gradients of RMSNorm, in one pass over x and dy.

With x̂ = x·scale and g = weight·dy:  dx = scale·(g − x̂·mean(x̂·g)),  dweight = Σ over rows of dy·x̂.
The first needs a sum along each row, the second one down each column. A row is in registers anyway, so a program walks
down its share of the rows and adds dy·x̂ up on the way; what is left is one partial sum a program, which a second small
kernel adds up in a fixed order. Programs are therefore few, two a multiprocessor, and each keeps the loads of the next
rows in flight while it works on this one (`num_stages`).
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

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
    launching.require_tensors(x=x)
    launching.require_dtypes(launching.FLOATS, weight=weight)
    launching.require_one_device(x=x, weight=weight)
    columns = launching.require_columns("x", x)
    launching.require_shape("weight", weight, (columns,), "one for each column of x")
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


@triton.jit
def rmsnorm_backward_kernel(
    dy_ptr, x_ptr, weight_ptr, scale_ptr, dx_ptr, partials_ptr, rows, columns, dy_row_stride, x_row_stride, tiles,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)[None, :]
    weight = tl.load(weight_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
    dweight = tl.zeros([ROWS, BLOCK], tl.float32)
    first = tl.program_id(0).to(tl.int64) * tiles * ROWS
    for tile in tl.range(0, tiles, num_stages=STAGES):
        row = first + tile * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (column < columns)
        x = tl.load(x_ptr + row * x_row_stride + column, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * dy_row_stride + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scale_ptr + row, mask=row < rows, other=0.0)
        normalised = x * scale
        g = weight * dy
        mean = tl.sum(normalised * g, axis=1)[:, None] / columns
        dx = scale * (g - normalised * mean)
        tl.store(dx_ptr + row * columns + column, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        dweight += dy * normalised
    column = tl.arange(0, BLOCK)
    tl.store(partials_ptr + tl.program_id(0) * columns + column, tl.sum(dweight, axis=0), mask=column < columns)


def rmsnorm_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x (its shape and dtype, contiguous) and of weight, summed in float32 and the same in every run.

    Args:
        dy: gradient of the output, the shape and dtype of x.
        x, weight: the inputs of `rmsnorm`.
        scale: 1 / √(mean(x²) + ε) of each row, (rows,) float32, as `rmsnorm_forward` returns it.
    """
    launching.require_tensors(dy=dy, x=x)
    launching.require_one_device(x=x, weight=weight, scale=scale)
    launching.require_shape("dy", dy, x.shape, "the shape of x")
    columns = launching.require_columns("x", x)
    dy, matrix, weight = as_rows(dy), as_rows(x), weight.contiguous()
    rows = matrix.shape[0]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not rows:
        return dx, torch.zeros_like(weight)
    if columns > LONGEST_ROW_OF_TWO:
        dweight, _ = norm_gradients_long_rows(dy, matrix, weight, None, scale, dx)
        return dx, dweight
    chosen = row_tile_of_two(columns, x.element_size())
    programs, tiles = share_rows(rows, chosen.constants["ROWS"])
    partials = torch.empty((programs, columns), dtype=torch.float32, device=x.device)
    rmsnorm_backward_kernel[(programs,)](
        dy, matrix, weight, scale, dx, partials, rows, columns, dy.stride(0), matrix.stride(0), tiles,
        **chosen.options(),
    )  # fmt: skip
    return dx, partial_sums(partials, weight.dtype)


def backward_reference(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    normalised = x * scale.to(x.dtype).reshape(*x.shape[:-1], 1)
    g = weight * dy
    dx = scale.to(x.dtype).reshape(*x.shape[:-1], 1) * (g - normalised * (normalised * g).mean(-1, keepdim=True))
    return dx, (dy * normalised).reshape(-1, x.shape[-1]).sum(0)


def backward_cost(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Reads dy, x, the weight and a float32 a row, writes dx and dweight; and the partial sums out and in again."""
    chosen = row_tile_of_two(columns, int(bytes_per_element))
    programs, _ = share_rows(rows, chosen.constants["ROWS"])
    rowwise = Work((3 * rows + 1) * columns * bytes_per_element + 4 * rows, 9 * rows * columns)
    return rowwise + partial_sums_cost(programs, columns, bytes_per_element)
