"""The kernel on weights of few bits as entries like those of the kernels' catalog, beside PyTorch's dense product.

They are not in the catalog itself, as `inner` knows nothing of `product`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from threeloops.inner.costs import Work
from threeloops.inner.kernels.catalog import Entry, Shape
from threeloops.inner.kernels.catalog.entry import shapes
from threeloops.product.quantized import QuantizedWeight, Scheme, quantize_weight
from threeloops.product.quantized.weight_only_matmul import cost, reference, weight_only_matmul

__all__ = ["quantized_entries"]

_SIZES = shapes("tokens", "columns", "rows")


def quantized_entries() -> tuple[Entry, ...]:
    """int4 and int8, in symmetric groups of 128; timed at the layers of a model of 8 billion parameters."""
    return tuple(
        Entry(
            f"weight_only_matmul_int{bits}",
            _of_weight(weight_only_matmul),
            _of_weight(reference),
            partial(_inputs, scheme),
            partial(_cost, scheme),
            metered=_SIZES((1, 1024, 256), (7, 515, 130)),
            compiled=_SIZES((1, 4096, 14336), (64, 4096, 4096), (1, 4100, 4096)),
            timed=_SIZES((1, 4096, 14336), (1, 14336, 4096), (16, 4096, 14336), (64, 4096, 14336)),
            tensor_cores=True,
            peers={"torch": lambda x, weight, dense: x @ dense.T},
        )
        for bits, scheme in ((4, Scheme(4, 128)), (8, Scheme(8, 128)))
    )


def _of_weight(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda x, weight, dense: function(x, weight)


def _inputs(scheme: Scheme, shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    """Tokens, a weight of few bits, and the same weight in `dtype`, which only the peer reads."""
    tokens, rows, columns = shape["tokens"], shape["rows"], shape["columns"]
    if device == "meta":
        stored = -(-columns * scheme.bits // 8)
        codes = torch.empty(rows, stored, dtype=torch.uint8, device=device)
        scales = torch.empty(rows, scheme.groups(columns), dtype=scheme.scale_dtype, device=device)
        weight = QuantizedWeight(scheme, columns, codes, scales)
        x, dense = (torch.empty(each, columns, dtype=dtype, device=device) for each in (tokens, rows))
        return x, weight, dense
    generator = torch.Generator(device).manual_seed(seed)
    x, dense = (torch.randn(each, columns, generator=generator, device=device) for each in (tokens, rows))
    weight = quantize_weight(dense, scheme)
    return x.to(dtype), weight, weight.dequantize(dtype)


def _cost(scheme: Scheme, shape: Shape, dtype: torch.dtype) -> Work:
    return cost(shape["tokens"], shape["columns"], shape["rows"], scheme, dtype.itemsize)
