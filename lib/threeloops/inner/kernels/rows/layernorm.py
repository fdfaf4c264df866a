"""LayerNorm: y = (x − mean(x)) / √(var(x) + ε) · weight + bias, for each row.

Source: Ba, Kiros and Hinton, "Layer Normalization" (2016).

The kernels follow `rmsnorm`. Forward, the row is in registers, so the variance can be the mean of (x − mean)² once the
mean is known; the one-pass formula mean(x²) − mean(x)² subtracts two large numbers and loses the digits of rows far
from zero. Mean and reciprocal deviation, 8 bytes per row, are kept for the backward pass.

Backward, with x̂ = (x − mean)·scale and g = weight·dy:  dx = scale·(g − x̂·mean(x̂·g) − mean(g)),
dweight = Σ over rows of dy·x̂,  dbias = Σ over rows of dy.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from threeloops.inner import costs
from threeloops.inner.costs import Work
from threeloops.inner.kernels.rows import tiles

__all__ = [
    "backward_cost", "backward_reference", "cost", "layernorm", "layernorm_backward", "layernorm_backward_kernel",
    "layernorm_kernel", "reference",
]  # fmt: skip


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
    """Compute LayerNorm over the last dimension in float32. Differentiable in x, weight and bias.

    Args:
        x: (..., columns) of float16, bfloat16 or float32. Rows may lie apart; a row whose elements do is copied first.
            A row of more than 16,384 elements is read twice.
        weight, bias: (columns,), both of one dtype, which may differ from x's.
        epsilon: added to the variance.

    Returns a contiguous tensor of x's shape and dtype.
    """
    return _LayerNorm.apply(x, weight, bias, epsilon)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, epsilon):
        y, mean, scale = _layernorm_forward(x, weight, bias, epsilon)
        ctx.save_for_backward(x, weight, mean, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return *layernorm_backward(dy, *ctx.saved_tensors), None


def _layernorm_forward(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the output, and mean and 1 / √(var + ε) of each row in float32, which `layernorm_backward` takes."""
    columns = tiles.require_vectors(x, weight=weight, bias=bias)
    matrix, weight, bias = tiles.as_rows(x), weight.contiguous(), bias.contiguous()
    rows = matrix.shape[0]
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    mean, scale = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    if columns > tiles.LONGEST_ROW:
        tiles.long_norm_kernel[(rows,)](
            matrix, weight, bias, y, mean, scale, columns, matrix.stride(0), epsilon, **tiles.ROW.options()
        )
    elif rows:
        chosen = tiles.row_tile(columns)
        stack = tiles.tiles_per_program(rows, columns)
        grid = (triton.cdiv(rows, stack * chosen.constants["ROWS"]),)
        layernorm_kernel[grid](
            matrix, weight, bias, y, mean, scale, rows, columns, matrix.stride(0), epsilon,
            TILES=stack, **chosen.options(),
        )  # fmt: skip
    return y, mean, scale


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float = 1e-5) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + epsilon) * weight + bias


def cost(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Return the least work of LayerNorm, and two float32 per row, its mean and scale, for the backward pass."""
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
    """Compute the gradients of x (its shape and dtype, contiguous), weight and bias, in the same way as
    `rmsnorm_backward`.

    mean and scale, (rows,) float32 each, come from `_layernorm_forward`.
    """
    columns = tiles.require_gradient(dy, x, weight=weight, mean=mean, scale=scale)
    dy, matrix, weight = tiles.as_rows(dy), tiles.as_rows(x), weight.contiguous()
    rows = matrix.shape[0]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not rows:
        return dx, torch.zeros_like(weight), torch.zeros_like(weight)
    if columns > tiles.LONGEST_ROW_OF_TWO:
        return dx, *tiles.norm_gradients_long_rows(dy, matrix, weight, mean, scale, dx)
    chosen, programs, stack = tiles.row_tile_of_two(rows, columns, x.element_size())
    dweight, dbias = (torch.empty((programs, columns), dtype=torch.float32, device=x.device) for _ in range(2))
    layernorm_backward_kernel[(programs,)](
        dy, matrix, weight, mean, scale, dx, dweight, dbias,
        rows, columns, dy.stride(0), matrix.stride(0), stack, **chosen.options(),
    )  # fmt: skip
    return dx, *(tiles.partial_sums(partials, weight.dtype) for partials in (dweight, dbias))


def backward_reference(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mean, scale = (statistic.to(x.dtype).reshape(*x.shape[:-1], 1) for statistic in (mean, scale))
    normalised, g = (x - mean) * scale, weight * dy
    dx = scale * (g - normalised * (normalised * g).mean(-1, keepdim=True) - g.mean(-1, keepdim=True))
    columns = x.shape[-1]
    return dx, (dy * normalised).reshape(-1, columns).sum(0), dy.reshape(-1, columns).sum(0)


def backward_cost(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Return the cost: reads dy, x, the weight and two float32 per row, writes dx, and writes and reads two sets of
    partial sums."""
    _, programs, _ = tiles.row_tile_of_two(rows, columns, int(bytes_per_element))
    rowwise = Work((3 * rows + 1) * columns * bytes_per_element + 8 * rows, 13 * rows * columns)
    return rowwise + 2 * tiles.partial_sums_cost(programs, columns, bytes_per_element)
