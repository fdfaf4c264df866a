"""Softmax of each row, forward and backward: one read and one write if a row fits, an online pass if not.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).

A naive softmax reads its row three times: for the maximum, for the sum and for the result. A row that fits the
registers of one program is read once. For a longer one the first two readings become one: whenever a block raises the
running maximum m to m', the sum so far is multiplied by exp(m − m').

A row that holds nothing but −inf gives NaN, as in torch.softmax: there is no maximum to subtract.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from threeloops.inner import costs
from threeloops.inner.costs import Work
from threeloops.inner.kernels import launching
from threeloops.inner.kernels.launching import Configuration
from threeloops.inner.kernels.rows.tiles import LONGEST_ROW, as_rows, row_tile

__all__ = [
    "backward_cost", "backward_reference", "cost", "long_softmax_backward_kernel", "online_softmax_kernel",
    "reference", "softmax", "softmax_backward", "softmax_backward_kernel", "softmax_kernel",
]  # fmt: skip

_LONG_ROWS = Configuration({"BLOCK": 8192}, num_warps=8)


@triton.jit
def softmax_kernel(x_ptr, y_ptr, rows, columns, x_row_stride, x_column_stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK).to(tl.int64)[None, :]
    inside = (row < rows) & (column < columns)
    x = tl.load(x_ptr + row * x_row_stride + column * x_column_stride, mask=inside, other=-float("inf")).to(tl.float32)
    numerator = tl.exp(x - tl.max(x, axis=1)[:, None])
    y = numerator / tl.sum(numerator, axis=1)[:, None]
    tl.store(y_ptr + row * columns + column, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def online_softmax_kernel(x_ptr, y_ptr, columns, x_row_stride, x_column_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK).to(tl.int64)
    x_ptr += row * x_row_stride
    y_ptr += row * columns
    maximum = -float("inf")
    total = 0.0
    for start in range(0, columns, BLOCK):
        inside = start + column < columns
        x = tl.load(x_ptr + (start + column) * x_column_stride, mask=inside, other=-float("inf")).to(tl.float32)
        raised = tl.maximum(maximum, tl.max(x, axis=0))
        shift = tl.where(raised == -float("inf"), 0.0, raised)  # while all are −inf, their exponentials are 0
        total = total * tl.exp(maximum - shift) + tl.sum(tl.exp(x - shift), axis=0)
        maximum = raised
    for start in range(0, columns, BLOCK):
        inside = start + column < columns
        x = tl.load(x_ptr + (start + column) * x_column_stride, mask=inside, other=-float("inf")).to(tl.float32)
        y = tl.exp(x - maximum) / total
        tl.store(y_ptr + start + column, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def softmax_backward_kernel(y_ptr, dy_ptr, dx_ptr, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < columns)
    y = tl.load(y_ptr + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    dx = y * (dy - tl.sum(y * dy, axis=1)[:, None])
    tl.store(dx_ptr + row * columns + column, dx.to(dx_ptr.dtype.element_ty), mask=inside)


@triton.jit
def long_softmax_backward_kernel(y_ptr, dy_ptr, dx_ptr, columns, BLOCK: tl.constexpr):
    start_of_row = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, BLOCK)
    y_ptr += start_of_row
    dy_ptr += start_of_row
    dx_ptr += start_of_row
    total = 0.0
    for start in range(0, columns, BLOCK):
        inside = start + column < columns
        y = tl.load(y_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(y * dy, axis=0)
    for start in range(0, columns, BLOCK):
        inside = start + column < columns
        y = tl.load(y_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + start + column, (y * (dy - total)).to(dx_ptr.dtype.element_ty), mask=inside)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Compute softmax over the last dimension in float32. Differentiable. Returns a contiguous tensor of x's dtype.

    x is (..., columns) of float16, bfloat16 or float32. A matrix of any strides is read in place; more dimensions are
    copied if they cannot be viewed as one matrix.
    """
    launching.require_tensors(x=x)
    launching.require_columns("x", x)
    return _Softmax.apply(x)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        matrix = x.reshape(-1, x.shape[-1])
        rows, columns = matrix.shape
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if rows and columns <= LONGEST_ROW:
            chosen = row_tile(columns)
            grid = (triton.cdiv(rows, chosen.constants["ROWS"]),)
            softmax_kernel[grid](matrix, y, rows, columns, *matrix.stride(), **chosen.options())
        elif rows:
            online_softmax_kernel[(rows,)](matrix, y, columns, *matrix.stride(), **_LONG_ROWS.options())
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return softmax_backward(dy, *ctx.saved_tensors)


def softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the input, y·(dy − Σ y·dy), from the output y and its gradient dy. Shape of y."""
    launching.require_tensors(dy=dy, y=y)
    launching.require_shape("dy", dy, y.shape, "the shape of y")
    columns = launching.require_columns("y", y)
    dy, y = as_rows(dy).contiguous(), y.contiguous()
    dx = torch.empty_like(y)
    rows = dy.shape[0]
    if rows and columns <= LONGEST_ROW:
        chosen = row_tile(columns)
        grid = (triton.cdiv(rows, chosen.constants["ROWS"]),)
        softmax_backward_kernel[grid](y, dy, dx, rows, columns, **chosen.options())
    elif rows:
        long_softmax_backward_kernel[(rows,)](y, dy, dx, columns, **_LONG_ROWS.options())
    return dx


def reference(x: torch.Tensor) -> torch.Tensor:
    numerator = torch.exp(x - x.amax(-1, keepdim=True))
    return numerator / numerator.sum(-1, keepdim=True)


def backward_reference(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y * (dy - (y * dy).sum(-1, keepdim=True))


cost = costs.softmax
"""One read and one write, however long the row; a larger cache would save the second reading of a long row."""


def backward_cost(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Return the cost: reads y and dy, writes dx. Two FLOPs for the sum, two for the result."""
    return Work(3 * rows * columns * bytes_per_element, 4 * rows * columns)
