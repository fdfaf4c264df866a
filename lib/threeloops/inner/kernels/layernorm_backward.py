"""The gradients of LayerNorm, in one pass over x and dy.

With x̂ = (x − mean)·scale and g = weight·dy:  dx = scale·(g − x̂·mean(x̂·g) − mean(g)),  dweight = Σ over rows of
dy·x̂, dbias = Σ over rows of dy. As in `rmsnorm_backward`, a program walks down its share of the rows with the next
rows' loads in flight, adds the two column sums up on the way, and a second small kernel adds up what programs leave.
"""

import torch
import triton
import triton.language as tl

from threeloops.inner.costs import Work
from threeloops.inner.kernels import arguments, partial_sums
from threeloops.inner.kernels.long_rows import norm_gradients_long_rows
from threeloops.inner.kernels.row_tiles import LONGEST_ROW_OF_TWO, as_rows, row_tile_of_two, share_rows


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
    arguments.require_tensors(dy=dy, x=x)
    arguments.require_one_device(x=x, weight=weight, mean=mean, scale=scale)
    arguments.require_shape("dy", dy, x.shape, "the shape of x")
    columns = arguments.require_columns("x", x)
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
    return dx, *(partial_sums.partial_sums(each, weight.dtype) for each in (dweight, dbias))


def reference(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mean, scale = (each.to(x.dtype).reshape(*x.shape[:-1], 1) for each in (mean, scale))
    normalised, g = (x - mean) * scale, weight * dy
    dx = scale * (g - normalised * (normalised * g).mean(-1, keepdim=True) - g.mean(-1, keepdim=True))
    columns = x.shape[-1]
    return dx, (dy * normalised).reshape(-1, columns).sum(0), dy.reshape(-1, columns).sum(0)


def cost(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Reads dy, x, the weight and two float32 a row, writes dx; and two sets of partial sums out and in again."""
    chosen = row_tile_of_two(columns, int(bytes_per_element))
    programs, _ = share_rows(rows, chosen.constants["ROWS"])
    rowwise = Work((3 * rows + 1) * columns * bytes_per_element + 8 * rows, 13 * rows * columns)
    return rowwise + 2 * partial_sums.cost(programs, columns, bytes_per_element)
