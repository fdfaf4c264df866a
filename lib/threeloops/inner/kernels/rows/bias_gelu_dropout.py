"""dropout(gelu(x + bias), p): three kernels and their round trips through memory in one, without a mask in memory.

Sources: Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (2011), for the generator, Philox
4×32-10; Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016); Abramowitz and Stegun, "Handbook of Mathematical
Functions" (1964), formula 7.1.26, for the normal distribution.

Philox turns (seed, counter) into four words of 32 bits and keeps no state. The counter is the element's position, so
the backward pass draws the mask again from the seed, and only the inputs are kept. A call of Philox costs more than
bias and GELU together. `tl.rand` uses 32 of the call's 128 bits for one element. But 16 bits are enough to drop an
element with probability p, so here eight elements share a call.

The exact GELU is z·Φ(z). Formula 7.1.26 gives the tail of Φ as a polynomial times exp(−z²/2), off by at most 0.75e-7,
which float32 loses anyway when it adds erf to 1. It takes fewer instructions than `tl.erf`, and the derivative needs
the exponential too.

Backward, dz = mask · dy / (1 − p) · gelu'(x + bias) is dx, and dbias is its sum over the rows. A program takes a stack
of tiles, sums their columns on the way and leaves one partial sum; a second small kernel adds them up in a fixed order.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from threeloops.inner.costs import Work
from threeloops.inner.kernels import launching
from threeloops.inner.kernels.launching import Configuration
from threeloops.inner.kernels.rows.tiles import as_rows, partial_sums, partial_sums_cost, stack_rows

__all__ = [
    "backward_cost", "bias_gelu_dropout", "bias_gelu_dropout_backward", "bias_gelu_dropout_backward_kernel",
    "bias_gelu_dropout_kernel", "cost", "gelu", "gelu_derivative", "kept_mask", "kept_scale", "normal_distribution",
    "random_tile", "reference",
]  # fmt: skip

_ROUNDS = 10
_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


@triton.jit
def random_tile(seed, first_row, first_column, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Draw ROWS × COLUMNS random numbers r, 0 ≤ r < 2¹⁶ (int32), for the tile that begins at (first_row, first_column).

    A call of Philox yields eight of them: element (row, column) takes number column % 8 of the counter
    row·⌈columns / 8⌉ + column // 8, in any tile. `first_column` is a multiple of 8. `first_row` is an int64, since a
    counter may exceed 32 bits.
    """
    eighth = first_column // 8 + tl.arange(0, COLUMNS // 8)[None, :]
    counter = (first_row + tl.arange(0, ROWS)[:, None]) * ((columns + 7) // 8) + eighth
    w0, w1, w2, w3 = tl.randint4x(seed, counter)
    words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [ROWS, COLUMNS // 2])
    return tl.reshape(tl.join(words & 0xFFFF, words >> 16), [ROWS, COLUMNS]).to(tl.int32)


def _philox(seed: int, counter: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the result of `tl.randint4x(seed, counter)`: four int64 tensors of words, 0 ≤ word < 2³², of the counter's
    shape.

    int64 products may wrap. The low word of a wrapped product is right. So is the high word, once the copies of its
    sign are masked away.
    """
    words = [counter & _WORD, (counter >> 32) & _WORD, torch.zeros_like(counter), torch.zeros_like(counter)]
    keys = [seed & _WORD, (seed >> 32) & _WORD]
    for _ in range(_ROUNDS):
        first, second = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        high_first, high_second = ((product >> 32) & _WORD for product in (first, second))
        words = [high_second ^ words[1] ^ keys[0], second & _WORD, high_first ^ words[3] ^ keys[1], first & _WORD]
        keys = [(key + step) & _WORD for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return tuple(words)


@triton.jit
def gelu(z, TANH: tl.constexpr):
    """Compute z·Φ(z). The approximation's ½(1 + tanh u) is written as the sigmoid of 2u, which is the same."""
    if TANH:
        return z * tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))
    else:
        return z * normal_distribution(z, tl.exp(-0.5 * z * z))


@triton.jit
def gelu_derivative(z, TANH: tl.constexpr):
    """Compute Φ(z) + z·φ(z), or the derivative of the approximation.

    With e = exp(−|2u|), the product of the sigmoid of 2u and its distance from 1 is e / (1 + e)², which subtracts
    nothing and so loses no digits.
    """
    if TANH:
        twice_u = 1.5957691216057308 * (z + 0.044715 * z * z * z)
        e = tl.exp(-tl.abs(twice_u))
        larger = 1 / (1 + e)
        slope = 1.5957691216057308 * (1 + 0.134145 * z * z)
        return tl.where(twice_u > 0, larger, e * larger) + z * slope * e * larger * larger
    else:
        bell = tl.exp(-0.5 * z * z)
        return normal_distribution(z, bell) + 0.3989422804014327 * z * bell


@triton.jit
def normal_distribution(z, bell):
    """Compute Φ(z), where `bell` is exp(−z²/2). The polynomial is 7.1.26's for erfc(|z|/√2), halved."""
    t = 1 / (1 + 0.23164189 * tl.abs(z))
    polynomial = 0.5307027145 * t - 0.7265760135
    polynomial = polynomial * t + 0.7107068705
    polynomial = polynomial * t - 0.142248368
    polynomial = polynomial * t + 0.127414796
    tail = polynomial * t * bell
    return tl.where(z > 0, 1 - tail, tail)


_CONFIGURATION = Configuration({"ROWS": 32, "COLUMNS": 128}, num_warps=4)


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
        keep_mask = random_tile(seed, first_row, first_column, columns, ROWS, COLUMNS) >= threshold
        y = tl.where(keep_mask, y * scale, 0.0)
    tl.store(y_ptr + row * columns + column, y.to(y_ptr.dtype.element_ty), mask=inside)


def bias_gelu_dropout(
    x: torch.Tensor, bias: torch.Tensor, p: float, *, seed: int = 0, approximate: str = "none"
) -> torch.Tensor:
    """Compute dropout(gelu(x + bias), p) in float32. Differentiable in x and bias.

    Args:
        x: (..., columns) of float16, bfloat16 or float32. Rows may lie apart. A row whose elements lie apart is copied
            first.
        bias: (columns,) of x's dtype.
        p: probability of dropping an element, rounded to a multiple of 2⁻¹⁶. Kept elements are scaled by 1 / (1 − p).
        seed: the seed of the mask, 0 ≤ seed < 2⁶³. The same seed draws the same mask, so give every call of a step its
            own.
        approximate: "none" for the exact GELU (by erf), "tanh" for the approximation, as in torch.

    Returns a contiguous tensor of x's shape and dtype.
    """
    launching.require_tensors(x=x, bias=bias)
    columns = launching.require_columns("x", x)
    launching.require_shape("bias", bias, (columns,), "one for each column of x")
    launching.require_fraction("p", p)
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
        matrix, bias = as_rows(x), bias.contiguous()
        rows, columns = matrix.shape
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if rows:
            sizes = _CONFIGURATION.constants
            grid = (triton.cdiv(columns, sizes["COLUMNS"]) * triton.cdiv(rows, sizes["ROWS"]),)
            bias_gelu_dropout_kernel[grid](
                matrix, bias, y, rows, columns, matrix.stride(0), seed, _threshold(p), kept_scale(p),
                DROPOUT=p > 0, TANH=tanh, **_CONFIGURATION.options(),
            )  # fmt: skip
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return *bias_gelu_dropout_backward(dy, *ctx.saved_tensors, *ctx.options), None, None, None


def reference(
    x: torch.Tensor, bias: torch.Tensor, p: float, *, seed: int = 0, approximate: str = "none"
) -> torch.Tensor:
    """Compute the same in PyTorch, with the same mask."""
    y = torch.nn.functional.gelu(x + bias, approximate=approximate)
    return torch.where(kept_mask(x, p, seed), y * kept_scale(p), 0.0)


def kept_mask(x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """Return which elements of x are kept, as a bool tensor of its shape. It is bit for bit the mask of `random_tile`,
    in PyTorch."""
    columns = x.shape[-1]
    eighths = (columns + 7) // 8
    counter = torch.arange(x.numel() // columns * eighths, device=x.device).reshape(-1, eighths)
    words = torch.stack(_philox(seed, counter), dim=-1)
    numbers = torch.stack((words & 0xFFFF, words >> 16), dim=-1).reshape(-1, 8 * eighths)[:, :columns]
    return (numbers >= _threshold(p)).reshape(x.shape)


def cost(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Return the cost: reads x and the bias, writes y, but no mask. 6 FLOPs for bias, GELU and scale. Philox computes
    with integers only."""
    return Work((2 * rows + 1) * columns * bytes_per_element, 6 * rows * columns)


_BACKWARD_CONFIGURATION = Configuration({"ROWS": 16, "COLUMNS": 128}, num_warps=4)


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
            keep_mask = random_tile(seed, first_row, first_column, columns, ROWS, COLUMNS) >= threshold
            dz = tl.where(keep_mask, dz * scale, 0.0)
        dz *= gelu_derivative(x + bias, TANH)
        dbias += dz
        tl.store(dx_ptr + row * columns + column, dz.to(dx_ptr.dtype.element_ty), mask=inside)
    column = first_column + tl.arange(0, COLUMNS)
    tl.store(partials_ptr + stack.to(tl.int64) * columns + column, tl.sum(dbias, axis=0), mask=column < columns)


def bias_gelu_dropout_backward(
    dy: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, p: float, seed: int, tanh: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the gradients of x (its shape and dtype, contiguous) and bias, summed in float32 and identical in every
    run.

    dy, the gradient of the output, has x's shape and dtype; `tanh` says whether GELU was approximated.
    """
    dy, matrix, bias = as_rows(dy), as_rows(x), bias.contiguous()
    rows, columns = matrix.shape
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not rows:
        return dx, torch.zeros_like(bias)
    stacks, tiles = stack_rows(rows, _BACKWARD_CONFIGURATION.constants["ROWS"])
    partials = torch.empty((stacks, columns), dtype=torch.float32, device=x.device)
    grid = (triton.cdiv(columns, _BACKWARD_CONFIGURATION.constants["COLUMNS"]) * stacks,)
    bias_gelu_dropout_backward_kernel[grid](
        dy, matrix, bias, dx, partials, rows, columns, dy.stride(0), matrix.stride(0),
        seed, _threshold(p), kept_scale(p), DROPOUT=p > 0, TANH=tanh, TILES=tiles, **_BACKWARD_CONFIGURATION.options(),
    )  # fmt: skip
    return dx, partial_sums(partials, bias.dtype)


def _threshold(p: float) -> int:
    """Return the threshold that a random number 0 ≤ r < 2¹⁶ is below with probability p, up to rounding."""
    return round(p * 2**16)


def kept_scale(p: float) -> float:
    """Return 1 / (1 − p) for the rounded p, which keeps the mean, or 0 if everything is dropped."""
    dropped = _threshold(p) / 2**16
    return 1 / (1 - dropped) if dropped < 1 else 0.0


def backward_cost(rows: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Return the cost: reads dy, x and the bias, writes dx and dbias, and writes and reads the partial sums. 12 FLOPs
    per element."""
    elementwise = Work((3 * rows + 1) * columns * bytes_per_element, 12 * rows * columns)
    stacks, _ = stack_rows(rows, _BACKWARD_CONFIGURATION.constants["ROWS"])
    return elementwise + partial_sums_cost(stacks, columns, bytes_per_element)
