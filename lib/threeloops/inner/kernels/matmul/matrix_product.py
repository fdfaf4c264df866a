"""What the matrix kernels of this folder share: checked shapes, the tiles they are shipped with, the derivative, and
how much a tiled product reads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import triton

from threeloops.hardware import accelerator
from threeloops.inner import costs
from threeloops.inner.costs import Work
from threeloops.inner.kernels.launching import LARGEST_INT32, Configuration, require_dimensions, require_tensors, target

Blocks = Mapping[str, int | None]
"""BLOCK_M, BLOCK_N, BLOCK_K and GROUP_M, None where the shipped one is wanted."""

LARGEST_BLOCK = 256
PRECISIONS = ("tf32", "ieee")


def _tiles(block_m: int, block_n: int, block_k: int, num_warps: int, num_stages: int) -> Configuration:
    blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": 8}
    return Configuration(blocks, num_warps, num_stages)


_LARGE = {
    "sm_80": _tiles(128, 256, 32, 8, 4),
    "sm_90": _tiles(128, 256, 64, 8, 4),
    "sm_100": _tiles(128, 256, 64, 8, 4),
    "gfx942": _tiles(128, 256, 32, 8, 2),
}
_MEDIUM = {
    "sm_80": _tiles(128, 128, 64, 8, 3),
    "sm_90": _tiles(128, 128, 64, 8, 3),
    "sm_100": _tiles(128, 128, 64, 8, 3),
    "gfx942": _tiles(128, 128, 64, 8, 2),
}
_UNALIGNED = _tiles(64, 128, 32, 8, 2)
_TF32 = _tiles(128, 128, 32, 8, 3)
_TF32_UNALIGNED = _tiles(64, 64, 32, 4, 2)
_IEEE = _tiles(128, 64, 16, 8, 2)
"""Each compiles without spills and fits the target's shared memory. Rows that do not begin at multiples of 16 bytes are
read element by element: they need an address each, and so leave registers for small tiles only. Float32 without tensor
cores is bound by its multiply-adds, whatever the tile."""

_DEVICES = {"sm_80": "A100 SXM 80GB", "sm_90": "H100 SXM", "sm_100": "B200", "gfx942": "MI300X"}


@dataclass(frozen=True)
class TileTraffic:
    """Bytes of A and B loaded and of C stored, and the FLOPs of the dots, of one tiled product."""

    a: int
    b: int
    c: int
    dot_flops: int


@dataclass(frozen=True)
class Product:
    """The sizes of `matrices` products (m, k) @ (k, n)."""

    m: int
    k: int
    n: int
    matrices: int = 1

    @property
    def is_empty(self) -> bool:
        return self.m * self.n * self.matrices == 0


def product_of(a: torch.Tensor, b: torch.Tensor, *, batched: bool) -> Product:
    """Sizes of a @ b. Raises ValueError for tensors that cannot be multiplied here."""
    require_tensors(a=a, b=b)
    dimensions = "batch, rows, columns" if batched and max(a.ndim, b.ndim) == 3 else "rows, columns"
    require_dimensions("a", a, dimensions)
    require_dimensions("b", b, dimensions)
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
        if max(tensor.stride()[-2:]) * LARGEST_BLOCK > LARGEST_INT32:
            raise ValueError(
                f"{name} has strides {tensor.stride()}: expected rows less than "
                f"{LARGEST_INT32 // LARGEST_BLOCK:,} elements apart, since offsets within a tile have 32 bits; "
                "split the matrix"
            )
    return Product(a.shape[-2], a.shape[-1], b.shape[-1], a.shape[0] if a.ndim == 3 else 1)


def input_precision_of(dtype: torch.dtype, asked: str | None) -> str:
    """How float32 factors are multiplied: "tf32" keeps 10 of their 23 mantissa bits, "ieee" all of them.

    By default what torch does: TF32 where `torch.backends.cuda.matmul` allows it. Products of fp16 and bf16 are exact.
    """
    if asked is not None and asked not in PRECISIONS:
        raise ValueError(f"input_precision = {asked!r}: expected one of {', '.join(PRECISIONS)}")
    if dtype != torch.float32:
        return "ieee"
    return asked or ("tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee")


def multiprocessors(of: torch.Tensor) -> int:
    """Programs that can run at once, one on each multiprocessor: of the tensor's GPU, else of the target's device."""
    if of.is_cuda:
        return torch.cuda.get_device_properties(of.device).multi_processor_count
    return _published_multiprocessors(target())


@cache
def _published_multiprocessors(name: str) -> int:
    count = accelerator(_DEVICES[name]).multiprocessors
    assert count is not None
    return count


def choose(
    a: torch.Tensor, b: torch.Tensor, product: Product, precision: str, given: Blocks, *, large: bool = True
) -> Configuration:
    """The shipped tiles for a @ b on the current target, with the blocks that the caller gave in their place.

    `large` tiles are taken only if there are enough of them for every multiprocessor.
    """
    aligned = is_aligned(a) and is_aligned(b)
    if a.dtype == torch.float32:
        shipped = _IEEE if precision == "ieee" else _TF32 if aligned else _TF32_UNALIGNED
    elif not aligned:
        shipped = _UNALIGNED
    elif large and tiles(product, _LARGE[target()]) >= multiprocessors(a):
        shipped = _LARGE[target()]
    else:
        shipped = _MEDIUM[target()]
    replaced = {name: block for name, block in given.items() if block is not None}
    for name, block in replaced.items():
        if name == "GROUP_M":
            if block < 1:
                raise ValueError(f"group_m = {block}: expected at least 1 row of tiles; 1 is the plain order")
        elif not 16 <= block <= LARGEST_BLOCK or block & (block - 1):
            raise ValueError(f"{name.lower()} = {block}: expected a power of two from 16 to {LARGEST_BLOCK}")
    return replace(shipped, constants={**shipped.constants, **replaced})


def is_aligned(matrix: torch.Tensor) -> bool:
    """Whether Triton can prove that 16-byte accesses are aligned: whether 16 divides addresses, sizes and strides."""
    numbers = (matrix.data_ptr(), *matrix.shape, *matrix.stride())
    return all(number == 1 or number % 16 == 0 for number in numbers)


def tiles(product: Product, configuration: Configuration) -> int:
    """How many tiles of C all products of the batch have together."""
    block_m, block_n = configuration.constants["BLOCK_M"], configuration.constants["BLOCK_N"]
    return product.matrices * triton.cdiv(product.m, block_m) * triton.cdiv(product.n, block_n)


class MatrixProduct(torch.autograd.Function):
    """a @ b by `multiply`, and its derivative by the same: dA = dC Bᵀ and dB = Aᵀ dC are products, and strides make the
    transposes free."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor, multiply: Callable[..., torch.Tensor]) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        ctx.multiply = multiply
        return multiply(a, b)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        a, b = ctx.saved_tensors
        gradient_a = ctx.multiply(gradient, b.mT) if ctx.needs_input_grad[0] else None
        gradient_b = ctx.multiply(a.mT, gradient) if ctx.needs_input_grad[1] else None
        return gradient_a, gradient_b, None


def cost(m: int, k: int, n: int, bytes_per_element: float = 2, *, matrices: int = 1) -> Work:
    """The least that (m, k) @ (k, n) → (m, n) takes: factors read once, the product written once; 2·m·k·n FLOPs."""
    return matrices * costs.matmul(m, k, n, bytes_per_element)


def tile_traffic(
    m: int, k: int, n: int, block_m: int, block_n: int, block_k: int, bytes_per_element: int = 2
) -> TileTraffic:
    """What the tiled product asks of the memory system, exactly: each column of tiles reads all of A, each row of tiles
    all of B, whatever the cache then catches. Dots are counted whole, with the zeros that pad ragged edges."""
    rows, columns, steps = triton.cdiv(m, block_m), triton.cdiv(n, block_n), triton.cdiv(k, block_k)
    return TileTraffic(
        a=columns * m * k * bytes_per_element,
        b=rows * k * n * bytes_per_element,
        c=m * n * bytes_per_element,
        dot_flops=2 * rows * block_m * columns * block_n * steps * block_k,
    )
