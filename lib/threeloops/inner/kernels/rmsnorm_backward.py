"""The gradients of RMSNorm, in one pass over x and dy.

With x̂ = x·scale and g = weight·dy:  dx = scale·(g − x̂·mean(x̂·g)),  dweight = Σ over rows of dy·x̂.
The first needs a sum along each row, the second one down each column. A row is in registers anyway, so a program walks
down its share of the rows and adds dy·x̂ up on the way; what is left is one partial sum a program, which a second small
kernel adds up in a fixed order. Programs are therefore few, two a multiprocessor, and each keeps the loads of the next
rows in flight while it works on this one (`num_stages`).
"""

import torch
import triton
import triton.language as tl

from threeloops.inner.costs import Work
from threeloops.inner.kernels import arguments, partial_sums
from threeloops.inner.kernels.long_rows import norm_gradients_long_rows
from threeloops.inner.kernels.row_tiles import LONGEST_ROW_OF_TWO, as_rows, row_tile_of_two, share_rows


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
    arguments.require_tensors(dy=dy, x=x)
    arguments.require_one_device(x=x, weight=weight, scale=scale)
    arguments.require_shape("dy", dy, x.shape, "the shape of x")
    columns = arguments.require_columns("x", x)
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
    return dx, partial_sums.partial_sums(partials, weight.dtype)


def reference(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    normalised = x * scale.to(x.dtype).reshape(*x.shape[:-1], 1)
    g = weight * dy
    dx = scale.to(x.dtype).reshape(*x.shape[:-1], 1) * (g - normalised * (normalised * g).mean(-1, keepdim=True))
    return dx, (dy * normalised).reshape(-1, x.shape[-1]).sum(0)


def cost(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Reads dy, x, the weight and a float32 a row, writes dx and dweight; and the partial sums out and in again."""
    chosen = row_tile_of_two(columns, int(bytes_per_element))
    programs, _ = share_rows(rows, chosen.constants["ROWS"])
    rowwise = Work((3 * rows + 1) * columns * bytes_per_element + 4 * rows, 9 * rows * columns)
    return rowwise + partial_sums.cost(programs, columns, bytes_per_element)
