"""dropout(gelu(x + bias), p): three kernels and their round trips through memory in one, and no mask in memory at all.

Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011), for the generator, Philox.
Philox has no state: a random number is a function of a seed and a counter. The counter comes from the element's place,
so whoever knows the seed can draw the mask again: the backward pass recomputes it, together with x + bias, and nothing
but the inputs is kept. A call is more arithmetic than bias and GELU together and yields 128 random bits, of which
`tl.rand` uses 32. Here 16 do for an element, which is dropped where they lie below p·2¹⁶: eight elements share a call.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from threeloops.inner.costs import Work
from threeloops.inner.kernels import arguments
from threeloops.inner.kernels.bias_gelu_dropout_backward import bias_gelu_dropout_backward, kept_scale, threshold
from threeloops.inner.kernels.configuration import Configuration
from threeloops.inner.kernels.gelu import gelu
from threeloops.inner.kernels.philox import random_matrix, random_tile
from threeloops.inner.kernels.row_tiles import as_rows

CONFIGURATION = Configuration({"ROWS": 32, "COLUMNS": 128}, num_warps=4)


@triton.jit(do_not_specialize=["seed", "threshold"])
def bias_gelu_dropout_kernel(
    x_ptr, bias_ptr, y_ptr, rows, columns, x_row_stride, seed, threshold, scale,
    DROPOUT: tl.constexpr, TANH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    tiles_across = tl.cdiv(columns, COLUMNS)
    first_row = (tl.program_id(0) // tiles_across).to(tl.int64) * ROWS
    first_column = tl.program_id(0) % tiles_across * COLUMNS
    row = first_row + tl.arange(0, ROWS)[:, None]
    column = first_column + tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < columns)
    x = tl.load(x_ptr + row * x_row_stride + column, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
    y = gelu(x + bias, TANH)
    if DROPOUT:
        kept = random_tile(seed, first_row, first_column, columns, ROWS, COLUMNS) >= threshold
        y = tl.where(kept, y * scale, 0.0)
    tl.store(y_ptr + row * columns + column, y.to(y_ptr.dtype.element_ty), mask=inside)


def bias_gelu_dropout(
    x: torch.Tensor, bias: torch.Tensor, p: float = 0.0, *, seed: int = 0, approximate: str = "none"
) -> torch.Tensor:
    """dropout(gelu(x + bias), p), computed in float32; differentiable in x and bias.

    Args:
        x: (..., columns) of float16, bfloat16 or float32. Rows may lie apart; a row whose elements do is copied first.
        bias: (columns,) of x's dtype.
        p: probability of dropping an element, rounded to a multiple of 2⁻¹⁶; what is kept is scaled by 1 / (1 − p).
        seed: of the mask, from 0 up to 2⁶³. The same seed draws the same mask: give every call of a step its own.
        approximate: "none" for the exact GELU (by erf), "tanh" for the approximation, as in torch.

    Returns a contiguous tensor of x's shape and dtype. Rows and strides that are multiples of 16 bytes are moved 16
    bytes at a time; an odd row length turns each of those accesses into scalar ones.
    """
    arguments.require_tensors(x=x, bias=bias)
    columns = arguments.require_columns("x", x)
    arguments.require_shape("bias", bias, (columns,), "one for each column of x")
    arguments.require_fraction("p", p, one_allowed=True)
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed = {seed}: expected a number from 0 up to 2**63; take it modulo 2**63")
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate = {approximate!r}: expected 'none' (erf) or 'tanh'")
    return _BiasGeluDropout.apply(x, bias, p, seed, approximate == "tanh")


class _BiasGeluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, p, seed, tanh):
        ctx.save_for_backward(x, bias)
        ctx.options = p, seed, tanh
        return bias_gelu_dropout_forward(x, bias, p, seed, tanh)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return *bias_gelu_dropout_backward(dy, *ctx.saved_tensors, *ctx.options), None, None, None


def bias_gelu_dropout_forward(x: torch.Tensor, bias: torch.Tensor, p: float, seed: int, tanh: bool) -> torch.Tensor:
    matrix, bias = as_rows(x), bias.contiguous()
    rows, columns = matrix.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if rows:
        sizes = CONFIGURATION.constants
        grid = (triton.cdiv(columns, sizes["COLUMNS"]) * triton.cdiv(rows, sizes["ROWS"]),)
        bias_gelu_dropout_kernel[grid](
            matrix, bias, y, rows, columns, matrix.stride(0), seed, threshold(p), kept_scale(p),
            DROPOUT=p > 0, TANH=tanh, **CONFIGURATION.options(),
        )  # fmt: skip
    return y


def reference(
    x: torch.Tensor, bias: torch.Tensor, p: float = 0.0, *, seed: int = 0, approximate: str = "none"
) -> torch.Tensor:
    """The same mask, drawn in PyTorch."""
    y = torch.nn.functional.gelu(x + bias, approximate=approximate)
    return torch.where(kept_mask(x, p, seed), y * kept_scale(p), 0.0)


def kept_mask(x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """Which elements of x are kept: a bool tensor of its shape."""
    words = random_matrix(seed, x.numel() // x.shape[-1], x.shape[-1], x.device)
    return (words >= threshold(p)).reshape(x.shape) if p else torch.ones_like(x, dtype=torch.bool)


def cost(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Reads x and the bias, writes y; no mask. 6 FLOPs for bias, GELU and scale; the integers of Philox are none."""
    return Work((2 * rows + 1) * columns * bytes_per_element, 6 * rows * columns)
