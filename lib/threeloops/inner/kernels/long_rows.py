"""RMSNorm and LayerNorm of rows that no program can hold in its registers.

Forward, a program goes over its row twice: once for the mean and the spread, once to write the result; the second time
the row comes from the L2 cache. The spread of a block is taken around its own mean and blocks are combined by Chan's
formula, so that nothing is lost where rows lie far from zero.
Backward, sums along rows and sums down columns no longer fit one program: a first kernel takes the two sums of each
row, a second one, tile by tile, makes dx and adds up its columns. That reads x and dy twice; short rows need them once.

Source of the combination: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
Variances" (1979). RMSNorm is the same without means: its kernels get None for them.
"""

import torch
import triton
import triton.language as tl

from threeloops.inner.kernels import partial_sums
from threeloops.inner.kernels.configuration import Configuration

ROW = Configuration({"BLOCK": 4096}, num_warps=8)
TILE = Configuration({"ROWS": 16, "COLUMNS": 128}, num_warps=4)
LARGEST_STACK = 8


@triton.jit
def long_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, scale_ptr, columns, x_row_stride, epsilon, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row_stride
    y_ptr += row * columns
    mean = 0.0
    spread = 0.0
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
        if mean_ptr is not None:
            count = tl.minimum(columns - start, BLOCK)
            block_mean = tl.sum(x, axis=0) / count
            x = tl.where(column < columns, x - block_mean, 0.0)
            step = block_mean - mean
            spread += step * step * count * (start / (start + count))
            mean += step * count / (start + count)
        spread += tl.sum(x * x, axis=0)
    scale = tl.rsqrt(spread / columns + epsilon)
    tl.store(scale_ptr + row, scale)
    if mean_ptr is not None:
        tl.store(mean_ptr + row, mean)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
        y = (x - mean) * scale * tl.load(weight_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
        if bias_ptr is not None:
            y += tl.load(bias_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
        tl.store(y_ptr + column, y.to(y_ptr.dtype.element_ty), mask=column < columns)


@triton.jit
def row_sums_kernel(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, scale_ptr, product_ptr, g_ptr, columns, dy_row_stride, x_row_stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    mean = 0.0 if mean_ptr is None else tl.load(mean_ptr + row)
    scale = tl.load(scale_ptr + row)
    product = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        x = tl.load(x_ptr + row * x_row_stride + column, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * dy_row_stride + column, mask=inside, other=0.0).to(tl.float32)
        g = dy * tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
        product += (x - mean) * scale * g
        total += g
    tl.store(product_ptr + row, tl.sum(product, axis=0) / columns)
    tl.store(g_ptr + row, tl.sum(total, axis=0) / columns)


@triton.jit
def long_norm_gradients_kernel(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, scale_ptr, product_ptr, g_ptr, dx_ptr, dweight_ptr, dbias_ptr,
    rows, columns, dy_row_stride, x_row_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    weight = tl.load(weight_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
    dweight = tl.zeros([ROWS, COLUMNS], tl.float32)
    dbias = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(TILES):
        row = (tl.program_id(1).to(tl.int64) * TILES + tile) * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (column < columns)
        x = tl.load(x_ptr + row * x_row_stride + column, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * dy_row_stride + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scale_ptr + row, mask=row < rows, other=0.0)
        product = tl.load(product_ptr + row, mask=row < rows, other=0.0)
        g = dy * weight
        if mean_ptr is not None:
            x -= tl.load(mean_ptr + row, mask=row < rows, other=0.0)
            g -= tl.load(g_ptr + row, mask=row < rows, other=0.0)
        normalised = x * scale
        dx = scale * (g - normalised * product)
        tl.store(dx_ptr + row * columns + column, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        dweight += dy * normalised
        dbias += dy
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    position = tl.program_id(1) * columns + column
    tl.store(dweight_ptr + position, tl.sum(dweight, axis=0), mask=column < columns)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + position, tl.sum(dbias, axis=0), mask=column < columns)


def norm_long_rows(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epsilon: float,
    y: torch.Tensor,
    mean: torch.Tensor | None,
    scale: torch.Tensor,
) -> None:
    """Fill y, scale and, for LayerNorm, mean. x: (rows, columns) with contiguous rows; y is contiguous."""
    rows, columns = x.shape
    long_norm_kernel[(rows,)](x, weight, bias, y, mean, scale, columns, x.stride(0), epsilon, **ROW.options())


def norm_gradients_long_rows(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor | None,
    scale: torch.Tensor,
    dx: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Fill dx; the gradient of the weight and, for LayerNorm, of the bias. dy and x: (rows, columns)."""
    rows, columns = x.shape
    product, g = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    strides = dy.stride(0), x.stride(0)
    row_sums_kernel[(rows,)](dy, x, weight, mean, scale, product, g, columns, *strides, **ROW.options())
    sizes = TILE.constants
    tiles = min(LARGEST_STACK, triton.next_power_of_2(triton.cdiv(rows, sizes["ROWS"])))
    stacks = triton.cdiv(rows, tiles * sizes["ROWS"])
    dweight, dbias = (torch.empty((stacks, columns), dtype=torch.float32, device=x.device) for _ in range(2))
    grid = (triton.cdiv(columns, sizes["COLUMNS"]), stacks)
    long_norm_gradients_kernel[grid](
        dy, x, weight, mean, scale, product, g, dx, dweight, None if mean is None else dbias, rows, columns, *strides,
        TILES=tiles, **TILE.options(),
    )  # fmt: skip
    total = partial_sums.partial_sums(dweight, weight.dtype)
    return total, None if mean is None else partial_sums.partial_sums(dbias, weight.dtype)
