"""The shared parts of this folder's matrix kernels: checks of shapes, tile sizes per target, and the derivative."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypedDict

import torch
import triton

from threeloops.inner.kernels import launching
from threeloops.inner.kernels.launching import LARGEST_INT32, Configuration, target

__all__ = ["Launch", "Options", "choose", "multiply", "tiles", "tiles_of"]

_LARGEST_BLOCK = 256
_PRECISIONS = ("tf32", "ieee")


class Options(TypedDict, total=False):
    """Keyword arguments of every matrix product. Those that are missing or None are chosen automatically.

    `input_precision`, for float32, is "tf32" or "ieee", by default torch's setting. Blocks are powers of two from 16 to
    256. `group_m` is the number of rows of tiles that are taken together, column by column; 1 is the plain order.
    """

    input_precision: str | None
    block_m: int | None
    block_n: int | None
    block_k: int | None
    group_m: int | None


def tiles_of(block_m: int, block_n: int, block_k: int, num_warps: int, num_stages: int) -> Configuration:
    blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": 8}
    return Configuration(blocks, num_warps, num_stages)


_LARGE = {
    "sm_80": tiles_of(128, 256, 32, 8, 4),
    "sm_90": tiles_of(128, 256, 64, 8, 4),
    "sm_100": tiles_of(128, 256, 64, 8, 4),
    "gfx942": tiles_of(128, 256, 32, 8, 2),
}
_MEDIUM = {
    "sm_80": tiles_of(128, 128, 64, 8, 3),
    "sm_90": tiles_of(128, 128, 64, 8, 3),
    "sm_100": tiles_of(128, 128, 64, 8, 3),
    "gfx942": tiles_of(128, 128, 64, 8, 2),
}
_UNALIGNED = tiles_of(64, 128, 32, 8, 2)
_TF32 = tiles_of(128, 128, 32, 8, 3)
_TF32_UNALIGNED = tiles_of(64, 64, 32, 4, 2)
_IEEE = tiles_of(128, 64, 16, 8, 2)
"""Each tile compiles without spills and fits the target's shared memory. Rows that do not begin at multiples of 16
bytes are read element by element. Every element needs an address, which leaves registers for small tiles only. Float32
without tensor cores is limited by its multiply-adds, with any tile."""


def _require_product(a: torch.Tensor, b: torch.Tensor, *, batched: bool) -> None:
    """Check that the product a @ b can be computed here. Raises ValueError if not."""
    launching.require_tensors(a=a, b=b)
    dimensions = "batch, rows, columns" if batched and max(a.ndim, b.ndim) == 3 else "rows, columns"
    launching.require_dimensions("a", a, dimensions)
    launching.require_dimensions("b", b, dimensions)
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"a has {a.shape[-1]} columns and b has {b.shape[-2]} rows: expected one inner size k; "
            "transpose one with .mT if it is stored the other way round"
        )
    if a.shape[:-2] != b.shape[:-2]:
        raise ValueError(
            f"a is a batch of {a.shape[0]} matrices and b of {b.shape[0]}: expected as many; "
            "repeat the smaller with .expand, which copies nothing"
        )
    for name, tensor in (("a", a), ("b", b)):
        if max(tensor.stride()[-2:]) * _LARGEST_BLOCK > LARGEST_INT32:
            raise ValueError(
                f"{name} has strides {tensor.stride()}: expected rows less than "
                f"{LARGEST_INT32 // _LARGEST_BLOCK:,} elements apart, since offsets within a tile have 32 bits; "
                "split the matrix"
            )


def _input_precision_of(dtype: torch.dtype, asked: str | None) -> str:
    """Return how float32 factors are multiplied: "tf32" keeps 10 of their 23 mantissa bits, "ieee" all of them.

    The default is torch's: TF32 where `torch.backends.cuda.matmul` allows it. Products of fp16 and bf16 are exact.
    """
    if asked is not None and asked not in _PRECISIONS:
        raise ValueError(f"input_precision = {asked!r}: expected one of {', '.join(_PRECISIONS)}")
    if dtype != torch.float32:
        return "ieee"
    return asked or ("tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee")


def choose(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, precision: str, given: Mapping[str, int | None], large: bool
) -> Configuration:
    """Return the shipped tiles for c = a @ b on the current target, with the caller's `given` blocks in their place.

    `large` tiles are taken only if there are enough of them for every multiprocessor.
    """
    aligned = _is_aligned(a) and _is_aligned(b)
    if a.dtype == torch.float32:
        shipped = _IEEE if precision == "ieee" else _TF32 if aligned else _TF32_UNALIGNED
    elif not aligned:
        shipped = _UNALIGNED
    elif large and tiles(c, _LARGE[target()]) >= launching.multiprocessors():
        shipped = _LARGE[target()]
    else:
        shipped = _MEDIUM[target()]
    replaced = {name: block for name, block in given.items() if block is not None}
    for name, block in replaced.items():
        if name == "GROUP_M":
            if block < 1:
                raise ValueError(f"group_m = {block}: expected at least 1 row of tiles; 1 is the plain order")
        elif not 16 <= block <= _LARGEST_BLOCK or block & (block - 1):
            raise ValueError(f"{name.lower()} = {block}: expected a power of two from 16 to {_LARGEST_BLOCK}")
    return replace(shipped, constants={**shipped.constants, **replaced})


def _is_aligned(matrix: torch.Tensor) -> bool:
    """Return whether Triton can prove that 16-byte accesses are aligned: whether 16 divides addresses, sizes and
    strides."""
    numbers = (matrix.data_ptr(), *matrix.shape, *matrix.stride())
    return all(number == 1 or number % 16 == 0 for number in numbers)


def tiles(c: torch.Tensor, configuration: Configuration) -> int:
    """Return how many tiles all matrices of c have together."""
    block_m, block_n = configuration.constants["BLOCK_M"], configuration.constants["BLOCK_N"]
    return c.shape[:-2].numel() * triton.cdiv(c.shape[-2], block_m) * triton.cdiv(c.shape[-1], block_n)


Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, str, Configuration], None]
"""launch(a, b, c, precision, configuration) fills c with a @ b; c is not empty."""


def multiply(
    launch: Launch,
    a: torch.Tensor,
    b: torch.Tensor,
    batched: bool,
    large: bool,
    /,
    *,
    input_precision: str | None = None,
    block_m: int | None = None,
    block_n: int | None = None,
    block_k: int | None = None,
    group_m: int | None = None,
) -> torch.Tensor:
    """Compute a @ b by `launch`. Differentiable. `batched` allows batches of matrices. For `large` see `choose`."""
    precision = _input_precision_of(a.dtype, input_precision)
    blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": group_m}

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        _require_product(a, b, batched=batched)
        c = a.new_empty(*a.shape[:-1], b.shape[-1])
        if c.numel():
            launch(a, b, c, precision, choose(a, b, c, precision, blocks, large))
        return c

    return _Product.apply(a, b, product)


class _Product(torch.autograd.Function):
    """a @ b by `product`, and its derivative by the same: dA = dC Bᵀ and dB = Aᵀ dC are products, and transposes are
    only strides."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor, product: Callable[..., torch.Tensor]) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        ctx.product = product
        return product(a, b)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        a, b = ctx.saved_tensors
        gradient_a = ctx.product(gradient, b.mT) if ctx.needs_input_grad[0] else None
        gradient_b = ctx.product(a.mT, gradient) if ctx.needs_input_grad[1] else None
        return gradient_a, gradient_b, None
