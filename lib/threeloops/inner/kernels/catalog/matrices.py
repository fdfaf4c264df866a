"""Matrix products: tile by tile, by persistent programs, through tensor descriptors; and with their gradients."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from threeloops.inner import costs
from threeloops.inner.costs import Work
from threeloops.inner.kernels.catalog.entry import Entry, by_size, shapes
from threeloops.inner.kernels.catalog.rows_functions import drawn
from threeloops.inner.kernels.catalog.sparse_functions import gradients_of
from threeloops.inner.kernels.matmul import descriptor_matmul, matmul, persistent_matmul

__all__ = ["entries"]

_PRODUCTS = shapes("m", "k", "n")
_ALIGNED = {
    "metered": _PRODUCTS((512, 512, 512), (256, 320, 384)),
    "compiled": _PRODUCTS((4096, 4096, 4096), (8192, 1024, 28672), (512, 4096, 1024)),
    "timed": _PRODUCTS((8192, 8192, 8192), (4096, 4096, 4096), (512, 4096, 4096)),
}
_RAGGED = {"metered": (127, 129, 257), "compiled": (4096, 4097, 4095), "timed": (4095, 4097, 4093)}
_ALL = {kind: (*aligned, *_PRODUCTS(_RAGGED[kind])) for kind, aligned in _ALIGNED.items()}


def entries() -> tuple[Entry, ...]:
    return (
        _entry("matmul", matmul.matmul, _ALL),
        _entry("persistent_matmul", persistent_matmul.persistent_matmul, _ALL),
        _entry("descriptor_matmul", descriptor_matmul.descriptor_matmul, _ALIGNED),
        Entry(
            "matmul_with_gradients",
            gradients_of(matmul.matmul),
            gradients_of(matmul.reference),
            drawn(("m", "n"), ("m", "k"), ("k", "n")),
            by_size(_gradient_cost, "m", "k", "n"),
            **_ALL,
            tensor_cores=True,
            peers={"torch": gradients_of(torch.matmul)},
        ),
    )


def _entry(name: str, launch: Callable[..., Any], shapes: Mapping[str, Any]) -> Entry:
    return Entry(
        name,
        launch,
        matmul.reference,
        drawn(("m", "k"), ("k", "n")),
        by_size(costs.matmul, "m", "k", "n"),
        **shapes,
        tensor_cores=True,
        peers={"torch": torch.matmul},
    )


def _gradient_cost(m: int, k: int, n: int, bytes_per_element: float) -> Work:
    """Return the cost of C = A B, then dA = dC Bᵀ and dB = Aᵀ dC."""
    return sum((costs.matmul(*sizes, bytes_per_element) for sizes in ((m, k, n), (m, n, k), (k, m, n))), Work(0, 0))
