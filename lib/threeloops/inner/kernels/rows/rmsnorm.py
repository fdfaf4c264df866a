"""RMSNorm: y = x / √(mean(x²) + ε) · weight, for each row.

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).

Forward, a program holds its rows in registers, so that each is read once, and takes all sums in float32. It reads the
weight once for several tiles of rows. With rows of 4,096, reading it for every row would increase the requested bytes
by half, though only from the L2 cache. The reciprocal root of each row is kept for the backward pass, which saves a
reduction.

Backward, with x̂ = x·scale and g = weight·dy:  dx = scale·(g − x̂·mean(x̂·g)),  dweight = Σ over rows of dy·x̂.
One pass over x and dy gives both: a program walks down its share of the rows, sums dy·x̂ on the way and leaves one
partial sum, which a second small kernel adds up in a fixed order. So there are only two programs per multiprocessor,
and each keeps the loads of its next rows in flight while it works (`num_stages`).
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from threeloops.inner.costs import Work
from threeloops.inner.kernels.rows import tiles

__all__ = [
    "backward_cost", "backward_reference", "cost", "reference", "rmsnorm", "rmsnorm_backward",
    "rmsnorm_backward_kernel", "rmsnorm_kernel",
]  # fmt: skip


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
    """Compute RMSNorm over the last dimension in float32. Differentiable in x and weight.

    Args:
        x: (..., columns) of float16, bfloat16 or float32. Rows may lie apart; a row whose elements do is copied first.
            A row of more than 16,384 elements is read twice.
        weight: (columns,), of a dtype of its own: float32 weights with bfloat16 activations are common.
        epsilon: keeps the root away from 0.

    Returns a contiguous tensor of x's shape and dtype.
    """
    return _RMSNorm.apply(x, weight, epsilon)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, epsilon):
        y, scale = _rmsnorm_forward(x, weight, epsilon)
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return *rmsnorm_backward(dy, *ctx.saved_tensors), None


def _rmsnorm_forward(x: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output, and 1 / √(mean(x²) + ε) of each row in float32, which `rmsnorm_backward` takes."""
    columns = tiles.require_vectors(x, weight=weight)
    matrix, weight = tiles.as_rows(x), weight.contiguous()
    rows = matrix.shape[0]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    if columns > tiles.LONGEST_ROW:
        tiles.long_norm_kernel[(rows,)](
            matrix, weight, None, y, None, scale, columns, matrix.stride(0), epsilon, **tiles.ROW.options()
        )
    elif rows:
        chosen = tiles.row_tile(columns)
        stack = tiles.tiles_per_program(rows, columns)
        grid = (triton.cdiv(rows, stack * chosen.constants["ROWS"]),)
        rmsnorm_kernel[grid](
            matrix, weight, y, scale, rows, columns, matrix.stride(0), epsilon, TILES=stack, **chosen.options()
        )
    return y, scale


def reference(x: torch.Tensor, weight: torch.Tensor, epsilon: float = 1e-6) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def cost(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Return the cost: reads x and the weight, writes y and a float32 per row. A square, an addition and two products
    per element."""
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
    """Compute the gradients of x (its shape and dtype, contiguous) and weight, summed in float32 and identical in every
    run.

    dy, the gradient of the output, has x's shape and dtype. scale, (rows,) float32, comes from `_rmsnorm_forward`.
    """
    columns = tiles.require_gradient(dy, x, weight=weight, scale=scale)
    dy, matrix, weight = tiles.as_rows(dy), tiles.as_rows(x), weight.contiguous()
    rows = matrix.shape[0]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not rows:
        return dx, torch.zeros_like(weight)
    if columns > tiles.LONGEST_ROW_OF_TWO:
        dweight, _ = tiles.norm_gradients_long_rows(dy, matrix, weight, None, scale, dx)
        return dx, dweight
    chosen, programs, stack = tiles.row_tile_of_two(rows, columns, x.element_size())
    partials = torch.empty((programs, columns), dtype=torch.float32, device=x.device)
    rmsnorm_backward_kernel[(programs,)](
        dy, matrix, weight, scale, dx, partials, rows, columns, dy.stride(0), matrix.stride(0), stack,
        **chosen.options(),
    )  # fmt: skip
    return dx, tiles.partial_sums(partials, weight.dtype)


def backward_reference(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    scale = scale.to(x.dtype).reshape(*x.shape[:-1], 1)
    normalised, g = x * scale, weight * dy
    dx = scale * (g - normalised * (normalised * g).mean(-1, keepdim=True))
    return dx, (dy * normalised).reshape(-1, x.shape[-1]).sum(0)


def backward_cost(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Return the cost: reads dy, x, the weight and a float32 per row, writes dx and dweight, and writes and reads the
    partial sums."""
    _, programs, _ = tiles.row_tile_of_two(rows, columns, int(bytes_per_element))
    rowwise = Work((3 * rows + 1) * columns * bytes_per_element + 4 * rows, 9 * rows * columns)
    return rowwise + tiles.partial_sums_cost(programs, columns, bytes_per_element)
