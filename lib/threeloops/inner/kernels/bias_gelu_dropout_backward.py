"""The gradients of dropout(gelu(x + bias), p), with the mask drawn again from the seed.

dz = mask · dy / (1 − p) · gelu'(x + bias) is dx, and dbias is its sum down the columns. Recomputing costs arithmetic
and saves the two tensors that three separate kernels would have kept: the mask and x + bias. A program takes a stack of
tiles, adds its columns up on the way and leaves one partial sum; a second small kernel adds those up in a fixed order.
"""

import torch
import triton
import triton.language as tl

from threeloops.inner.costs import Work
from threeloops.inner.kernels import partial_sums
from threeloops.inner.kernels.configuration import Configuration
from threeloops.inner.kernels.gelu import gelu_derivative
from threeloops.inner.kernels.philox import random_tile
from threeloops.inner.kernels.row_tiles import as_rows

CONFIGURATION = Configuration({"ROWS": 16, "COLUMNS": 128}, num_warps=4)
LARGEST_STACK = 8


@triton.jit(do_not_specialize=["seed", "threshold"])
def bias_gelu_dropout_backward_kernel(
    dy_ptr, x_ptr, bias_ptr, dx_ptr, partials_ptr, rows, columns, dy_row_stride, x_row_stride, seed, threshold, scale,
    DROPOUT: tl.constexpr, TANH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    tiles_across = tl.cdiv(columns, COLUMNS)
    stack = tl.program_id(0) // tiles_across
    first_column = tl.program_id(0) % tiles_across * COLUMNS
    column = first_column + tl.arange(0, COLUMNS)[None, :]
    bias = tl.load(bias_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
    dbias = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(TILES):
        first_row = (stack.to(tl.int64) * TILES + tile) * ROWS
        row = first_row + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (column < columns)
        x = tl.load(x_ptr + row * x_row_stride + column, mask=inside, other=0.0).to(tl.float32)
        dz = tl.load(dy_ptr + row * dy_row_stride + column, mask=inside, other=0.0).to(tl.float32)
        if DROPOUT:
            kept = random_tile(seed, first_row, first_column, columns, ROWS, COLUMNS) >= threshold
            dz = tl.where(kept, dz * scale, 0.0)
        dz *= gelu_derivative(x + bias, TANH)
        dbias += dz
        tl.store(dx_ptr + row * columns + column, dz.to(dx_ptr.dtype.element_ty), mask=inside)
    column = first_column + tl.arange(0, COLUMNS)
    tl.store(partials_ptr + stack.to(tl.int64) * columns + column, tl.sum(dbias, axis=0), mask=column < columns)


def bias_gelu_dropout_backward(
    dy: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, p: float, seed: int, tanh: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of x (its shape and dtype, contiguous) and bias, summed in float32 and the same in every run.

    Args:
        dy: gradient of the output, the shape and dtype of x.
        x, bias, p, seed: what `bias_gelu_dropout` was called with.
        tanh: whether GELU was approximated.
    """
    dy, matrix, bias = as_rows(dy), as_rows(x), bias.contiguous()
    rows, columns = matrix.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not rows:
        return dx, torch.zeros_like(bias)
    tiles = tiles_per_program(rows)
    stacks = triton.cdiv(rows, tiles * CONFIGURATION.constants["ROWS"])
    partials = torch.empty((stacks, columns), dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(columns, CONFIGURATION.constants["COLUMNS"]) * stacks,)
    bias_gelu_dropout_backward_kernel[grid](
        dy, matrix, bias, dx, partials, rows, columns, dy.stride(0), matrix.stride(0),
        seed, threshold(p), kept_scale(p), DROPOUT=p > 0, TANH=tanh, TILES=tiles, **CONFIGURATION.options(),
    )  # fmt: skip
    return dx, partial_sums.partial_sums(partials, bias.dtype)


def threshold(p: float) -> int:
    """A random number from 0 up to 2¹⁶ lies below this with probability p, up to rounding."""
    return round(p * 2**16)


def kept_scale(p: float) -> float:
    """1 / (1 − p) for the rounded p, so that the mean stays; where nothing is kept, it does not matter."""
    dropped = threshold(p) / 2**16
    return 1 / (1 - dropped) if dropped < 1 else 0.0


def tiles_per_program(rows: int) -> int:
    """How many tiles a program stacks: few partial sums, and no tile without a row."""
    return min(LARGEST_STACK, triton.next_power_of_2(triton.cdiv(rows, CONFIGURATION.constants["ROWS"])))


def cost(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Reads dy, x and the bias, writes dx and dbias; and the partial sums out and in again. 12 FLOPs an element."""
    elementwise = Work((3 * rows + 1) * columns * bytes_per_element, 12 * rows * columns)
    stacks = triton.cdiv(rows, tiles_per_program(rows) * CONFIGURATION.constants["ROWS"])
    return elementwise + partial_sums.cost(stacks, columns, bytes_per_element)
