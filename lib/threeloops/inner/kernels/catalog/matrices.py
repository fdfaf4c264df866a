"""Matrix products: tile by tile, by persistent programs, through tensor descriptors; and with their gradients."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from threeloops.inner.costs import Work
from threeloops.inner.kernels.catalog.entry import Entry, Shape
from threeloops.inner.kernels.catalog.sparse_functions import gradients_of
from threeloops.inner.kernels.matmul import descriptor_matmul, matmul, matrix_product, persistent_matmul

METERED = (
    {"m": 512, "k": 512, "n": 512},
    {"m": 256, "k": 320, "n": 384},
    {"m": 127, "k": 129, "n": 257},
)
COMPILED = (
    {"m": 4096, "k": 4096, "n": 4096},
    {"m": 8192, "k": 1024, "n": 28672},
    {"m": 512, "k": 4096, "n": 1024},
    {"m": 4096, "k": 4097, "n": 4095},
)
TIMED = (
    {"m": 8192, "k": 8192, "n": 8192},
    {"m": 4096, "k": 4096, "n": 4096},
    {"m": 512, "k": 4096, "n": 4096},
    {"m": 4095, "k": 4097, "n": 4093},
)
ALIGNED = {"metered": METERED[:2], "compiled": COMPILED[:3], "timed": TIMED[:3]}
RAGGED = {"metered": METERED, "compiled": COMPILED, "timed": TIMED}


def entries() -> tuple[Entry, ...]:
    return (
        _entry("matmul", matmul.matmul, RAGGED),
        _entry("persistent_matmul", persistent_matmul.persistent_matmul, RAGGED),
        _entry("descriptor_matmul", descriptor_matmul.descriptor_matmul, ALIGNED),
        Entry(
            "matmul_with_gradients",
            gradients_of(matmul.matmul),
            gradients_of(matmul.reference),
            inputs_with_gradient,
            gradient_cost,
            **RAGGED,
            tensor_cores=True,
            peers={"torch": gradients_of(torch.matmul)},
        ),
    )


def _entry(name: str, launch: Callable[..., Any], shapes: Mapping[str, Any]) -> Entry:
    return Entry(
        name,
        launch,
        matmul.reference,
        inputs,
        lambda shape, dtype: matrix_product.cost(shape["m"], shape["k"], shape["n"], dtype.itemsize),
        **shapes,
        tensor_cores=True,
        peers={"torch": torch.matmul},
    )


def gradient_cost(shape: Shape, dtype: torch.dtype) -> Work:
    """C = A B, then dA = dC Bᵀ and dB = Aᵀ dC."""
    m, k, n = shape["m"], shape["k"], shape["n"]
    cost = matrix_product.cost
    return cost(m, k, n, dtype.itemsize) + cost(m, n, k, dtype.itemsize) + cost(k, m, n, dtype.itemsize)


def inputs(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    m, k, n = shape["m"], shape["k"], shape["n"]
    return normal((m, k), dtype, device, 2 * seed), normal((k, n), dtype, device, 2 * seed + 1)


def inputs_with_gradient(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[torch.Tensor, ...]:
    return normal((shape["m"], shape["n"]), dtype, device, -1 - seed), *inputs(shape, dtype, device, seed)


def normal(size: tuple[int, ...], dtype: torch.dtype, device: str, seed: int) -> torch.Tensor:
    """Normal numbers, drawn where they are needed; on "meta", where nothing has a value, none."""
    if device == "meta":
        return torch.empty(size, dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(size, generator=generator, device=device).to(dtype)
