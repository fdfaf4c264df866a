"""Training with 4-bit products: E2M1 numbers with a scale for each small block, emulated in float32.

layer = Fp4Linear(512, 2048, recipe=NVFP4)
layer(x).sum().backward()                   # all three products from 4-bit operands

E2M1 has the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6. A block of neighbours along the summed dimension shares a scale:

- MXFP4 (OCP Microscaling Formats v1.0, 2023): a power of two (E8M0) for 32 numbers, 2^(⌊log₂ amax⌋ − 2).
- NVFP4 (NVIDIA, "Pretraining Large Language Models with NVFP4", 2025, arXiv:2509.25149): an e4m3 number for 16 numbers,
  and one float32 number for the tensor.

The paper's recipe has four ingredients beside the format, and a `Fp4Recipe` turns three of them on and off. The fourth
is to keep some layers in 16 bits, which is a choice of where to use this layer:

- `square_weights`: weights have one scale for 16 × 16 numbers, so forward and backward see the same quantised weight.
- `stochastic_gradients`: gradients are rounded up or down at random, so that their mean is right.
- `hadamard`: for the gradient of the weight, both operands are rotated by a random Hadamard matrix along the summed
  dimension. The product stays, and an outlier is spread over its block.
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from threeloops.inner.precision.formats import FLOAT8_E4M3FN

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of the format, in the order of their codes."""
_LARGEST = E2M1[-1]
_EXPONENT = 2
"""The exponent of the largest number, 1.5 · 2²."""


@dataclass(frozen=True)
class Fp4Recipe:
    """`scales`: "e4m3" with one float32 scale per tensor, or "e8m0", a power of two. `block` numbers share one."""

    scales: Literal["e4m3", "e8m0"] = "e4m3"
    block: int = 16
    square_weights: bool = True
    stochastic_gradients: bool = True
    hadamard: bool = True

    def __post_init__(self) -> None:
        if self.scales not in ("e4m3", "e8m0"):
            raise ValueError(f"scales = {self.scales!r}: expected 'e4m3' (NVFP4) or 'e8m0' (MXFP4)")
        if self.block < 2 or self.block & (self.block - 1):
            raise ValueError(f"block = {self.block}: expected a power of two, 2 or more")


NVFP4 = Fp4Recipe()
MXFP4 = Fp4Recipe("e8m0", 32, square_weights=False, stochastic_gradients=False, hadamard=False)
"""The format alone, without further ingredients."""


def _to_e2m1(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Round x to numbers of E2M1; beyond 6 it saturates. Ties go to the even code.

    With a `generator`, x is rounded up or down at random with its fraction as the probability, so that the mean over
    many draws is x (for magnitudes up to 6).
    """
    size = x.abs().clamp(max=_LARGEST)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    steps = size / step
    if generator is None:
        steps = steps.round()
    else:
        coin = torch.rand(x.shape, generator=generator, device=x.device, dtype=x.dtype)
        steps = torch.floor(steps + coin)
    return torch.copysign(steps * step, x)


def quantise_fp4(
    x: Float[Tensor, "rows k"], recipe: Fp4Recipe, *, square: bool = False, generator: torch.Generator | None = None
) -> Float[Tensor, "rows k"]:
    """Return x as `recipe` stores it, in the dtype of x. Blocks lie along k. The last one of a row may be shorter.

    Args:
        square: one scale for block × block numbers instead of a row of them.
        generator: for stochastic rounding.
    """
    rows, k = x.shape
    height = recipe.block if square else 1
    blocks = nn.functional.pad(x, (0, -k % recipe.block, 0, -rows % height))
    blocks = blocks.unflatten(1, (-1, recipe.block)).unflatten(0, (-1, height))  # (rows / h, h, k / block, block)
    top = blocks.abs().amax((1, 3), keepdim=True)
    unit = _units(top, x, recipe)
    stored = torch.where(unit > 0, _to_e2m1(blocks / torch.where(unit > 0, unit, 1.0), generator) * unit, 0.0)
    return stored.flatten(2).flatten(0, 1)[:rows, :k]


def _units(top: Tensor, x: Tensor, recipe: Fp4Recipe) -> Tensor:
    """Return the number that 1 stands for in each block, given the largest magnitude of each."""
    if recipe.scales == "e8m0":
        return torch.where(top > 0, 2.0 ** (torch.floor(torch.log2(top)) - _EXPONENT), 0.0).to(x.dtype)
    amax = x.abs().amax() if x.numel() else x.new_zeros(())
    whole = torch.where(amax > 0, amax / (_LARGEST * FLOAT8_E4M3FN.largest), 1.0)
    return (top / _LARGEST / whole).to(torch.float8_e4m3fn).to(x.dtype) * whole


def rotated(x: Float[Tensor, "k n"], signs: Float[Tensor, " block"]) -> Float[Tensor, "k2 n"]:
    """Multiply each block of rows by the orthogonal Hadamard matrix, after its rows were multiplied by `signs` (±1).

    Rows are padded with zeros to a multiple of the block. Two matrices that are rotated alike have the same product
    xᵀy as before.
    """
    block = len(signs)
    rows = nn.functional.pad(x, (0, 0, 0, -len(x) % block)).unflatten(0, (-1, block))
    return (_hadamard(block).to(x) @ (signs.to(x)[:, None] * rows)).flatten(0, 1)


def _hadamard(size: int) -> Tensor:
    """Sylvester's matrix, divided by √size."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / size**0.5


class _Fp4Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: "Fp4Linear") -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x, weight)
        recipe = layer.recipe
        stored = quantise_fp4(weight.float(), recipe, square=recipe.square_weights)
        return (quantise_fp4(x.float(), recipe) @ stored.t()).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        layer: Fp4Linear = ctx.layer
        recipe = layer.recipe
        coin = layer.generator if recipe.stochastic_gradients else None
        whole = gradient.float()
        stored = quantise_fp4(weight.float().t(), recipe, square=recipe.square_weights)  # blocks along the outputs
        for_input = quantise_fp4(whole, recipe, generator=coin) @ stored.t()
        left, right = whole, x.float()
        if recipe.hadamard:
            flips = torch.randint(0, 2, (recipe.block,), generator=layer.generator, device=x.device)
            left, right = rotated(left, 2.0 * flips - 1), rotated(right, 2.0 * flips - 1)
        for_weight = quantise_fp4(left.t(), recipe, generator=coin) @ quantise_fp4(right.t(), recipe).t()
        return for_input.to(x.dtype), for_weight.to(weight.dtype), None


class Fp4Linear(nn.Module):
    """x @ weightᵀ + bias for x of shape (…, inputs), with the operands of all three products of a step in 4 bits.

    The weight stays as it is, and sums are in float32. `seed` starts the coins of stochastic rounding and the signs of
    rotations.
    """

    def __init__(
        self, inputs: int, outputs: int, *, bias: bool = True, recipe: Fp4Recipe = NVFP4, seed: int = 0
    ) -> None:
        super().__init__()
        plain = nn.Linear(inputs, outputs, bias=bias)
        self.weight = plain.weight
        self.bias = plain.bias
        self.recipe = recipe
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor) -> Tensor:
        flat = _Fp4Product.apply(x.reshape(-1, x.shape[-1]), self.weight, self)
        result = flat.reshape(*x.shape[:-1], self.weight.shape[0])
        return result if self.bias is None else result + self.bias.to(result.dtype)


__all__ = [
    "E2M1", "Fp4Linear", "Fp4Recipe", "MXFP4", "NVFP4", "quantise_fp4", "rotated",
]  # fmt: skip
