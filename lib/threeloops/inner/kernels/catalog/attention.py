"""FlashAttention: forward, and forward with backward."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from threeloops.inner.costs import Work
from threeloops.inner.kernels.attention_sizes import cost
from threeloops.inner.kernels.catalog import Entry, Shape
from threeloops.inner.kernels.catalog.rows_functions import normal
from threeloops.inner.kernels.flash_attention import flash_attention, reference

HALF = (torch.float16, torch.bfloat16)
SIZES = ("batch", "heads", "kv_heads", "queries", "keys", "head_dim", "causal")


def sizes(*each: tuple[Any, ...]) -> tuple[Mapping[str, Any], ...]:
    return tuple(dict(zip(SIZES, size, strict=True)) for size in each)


def heads(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    query = (shape["batch"], shape["heads"], shape["queries"], shape["head_dim"])
    key = (shape["batch"], shape["kv_heads"], shape["keys"], shape["head_dim"])
    return *normal(dtype, device, seed, query, key, key), shape["causal"]


def attention_cost(shape: Shape, dtype: torch.dtype) -> Work:
    named = {name: shape[name] for name in SIZES}
    return cost(**named, bytes_per_element=dtype.itemsize)


def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    return flash_attention(q, k, v, causal=causal)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    return reference(q, k, v, causal=causal)


def torch_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """PyTorch's operator; its causal mask is ours where there are as many keys as queries."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def entries() -> tuple[Entry, ...]:
    large = sizes(
        (4, 16, 16, 4096, 4096, 128, True),
        (4, 16, 16, 4096, 4096, 64, True),
        (4, 16, 16, 4096, 4096, 128, False),
        (2, 32, 8, 4097, 4097, 128, True),
    )
    return (
        Entry(
            "flash_attention",
            launch,
            plain,
            heads,
            attention_cost,
            metered=sizes((1, 2, 1, 256, 256, 64, True), (1, 1, 1, 129, 129, 128, True), (1, 2, 2, 130, 130, 64, False)),
            compiled=large,
            timed=large,
            dtypes=HALF,
            tensor_cores=True,
            peers={"torch": torch_attention},
        ),
    )
