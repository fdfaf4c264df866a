"""FlashAttention, forward and with its gradients: full, causal, with grouped heads, and one query after a prefix."""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from threeloops.inner.costs import Work
from threeloops.inner.kernels.attention import flash_attention, flash_attention_traffic
from threeloops.inner.kernels.catalog.entry import Entry, Shape
from threeloops.inner.kernels.catalog.rows_functions import normal
from threeloops.inner.kernels.catalog.sparse_functions import gradients_of


def sized(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, head_dim: int, *, causal: bool
) -> dict[str, Any]:
    return {
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads,
        "queries": queries,
        "keys": keys,
        "head_dim": head_dim,
        "causal": causal,
    }


METERED = (
    sized(1, 2, 1, 512, 512, 64, causal=True),
    sized(1, 2, 2, 256, 256, 128, causal=False),
    sized(2, 2, 1, 127, 300, 64, causal=True),
)
COMPILED = (
    sized(4, 32, 8, 4096, 4096, 128, causal=True),
    sized(4, 32, 32, 4096, 4096, 64, causal=True),
    sized(4, 32, 8, 4096, 4096, 128, causal=False),
    sized(4, 16, 16, 4097, 4097, 128, causal=True),
    sized(4, 16, 16, 1000, 4097, 64, causal=False),
)
TIMED = (
    sized(4, 32, 8, 4096, 4096, 128, causal=True),
    sized(1, 32, 32, 16384, 16384, 128, causal=False),
    sized(4, 32, 32, 4096, 4096, 64, causal=True),
    sized(16, 16, 16, 1024, 1024, 64, causal=False),
    sized(4, 32, 8, 4097, 4097, 128, causal=True),
)
ONE_QUERY = sized(8, 32, 8, 1, 8192, 128, causal=False)


def entries() -> tuple[Entry, ...]:
    return (
        Entry(
            "flash_attention",
            launch,
            reference,
            inputs,
            cost,
            METERED,
            COMPILED,
            (*TIMED, ONE_QUERY),
            tensor_cores=True,
            peers={"torch": torch_attention},
        ),
        Entry(
            "flash_attention_with_gradients",
            gradients_of(launch),
            gradients_of(reference),
            inputs_with_gradient,
            lambda shape, dtype: cost(shape, dtype) + backward_cost(shape, dtype),
            METERED,
            COMPILED,
            TIMED,
            tensor_cores=True,
            peers={"torch": gradients_of(torch_attention)},
        ),
    )


def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    output = flash_attention.flash_attention(q, k, v, causal=causal)
    assert isinstance(output, torch.Tensor)
    return output


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    return flash_attention.reference(q, k, v, causal=causal)


def torch_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """PyTorch's own. Its `is_causal` aligns the first query with the first key; for other lengths it takes a mask."""
    queries, keys = q.shape[2], k.shape[2]
    grouped = q.shape[1] != k.shape[1]
    if causal and queries != keys:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
    return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


def cost(shape: Shape, dtype: torch.dtype) -> Work:
    return flash_attention.cost(**shape, bytes_per_element=dtype.itemsize)


def backward_cost(shape: Shape, dtype: torch.dtype) -> Work:
    return flash_attention_traffic.backward_cost(**shape, bytes_per_element=dtype.itemsize)


def inputs(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    query, key = _tensor_shapes(shape)
    return *normal(dtype, device, seed, query, key, key), shape["causal"]


def inputs_with_gradient(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    return *normal(dtype, device, -1 - seed, _tensor_shapes(shape)[0]), *inputs(shape, dtype, device, seed)


def _tensor_shapes(shape: Shape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    query = (shape["batch"], shape["heads"], shape["queries"], shape["head_dim"])
    return query, (shape["batch"], shape["kv_heads"], shape["keys"], shape["head_dim"])
