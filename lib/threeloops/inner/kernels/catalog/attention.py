"""FlashAttention, forward and with its gradients: full, causal, with grouped heads, and one query after a prefix; and
paged attention."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from threeloops.inner.costs import Work
from threeloops.inner.kernels.attention import flash_attention, flash_attention_traffic, paged_attention
from threeloops.inner.kernels.attention.sizes import AttentionSizes
from threeloops.inner.kernels.catalog.entry import Entry, Shape, shapes
from threeloops.inner.kernels.catalog.rows_functions import normal
from threeloops.inner.kernels.catalog.sparse_functions import gradients_of

__all__ = ["entries", "reference", "with_gradients"]

_sized = shapes("batch", "heads", "kv_heads", "queries", "keys", "head_dim", "causal")
_METERED = _sized(
    (1, 2, 1, 512, 512, 64, True),
    (1, 2, 2, 256, 256, 128, False),
    (2, 2, 1, 127, 300, 64, True),
)
_COMPILED = _sized(
    (4, 32, 8, 4096, 4096, 128, True),
    (4, 32, 32, 4096, 4096, 64, True),
    (4, 32, 8, 4096, 4096, 128, False),
    (4, 16, 16, 4097, 4097, 128, True),
    (4, 16, 16, 1000, 4097, 64, False),
)
_TIMED = _sized(
    (4, 32, 8, 4096, 4096, 128, True),
    (1, 32, 32, 16384, 16384, 128, False),
    (4, 32, 32, 4096, 4096, 64, True),
    (16, 16, 16, 1024, 1024, 64, False),
    (4, 32, 8, 4097, 4097, 128, True),
)
_ONE_QUERY = _sized((8, 32, 8, 1, 8192, 128, False))
_paged = shapes("sequences", "heads", "kv_heads", "length", "head_dim", "block_size")


def entries() -> tuple[Entry, ...]:
    pair = with_gradients(
        "flash_attention",
        _launch,
        reference,
        _inputs,
        lambda shape, dtype: flash_attention.cost(_sizes(shape), dtype.itemsize, causal=shape["causal"]),
        lambda shape, dtype: flash_attention_traffic.backward_cost(
            _sizes(shape), dtype.itemsize, causal=shape["causal"]
        ),
        peers={"torch": _torch_attention},
        metered=_METERED,
        compiled=_COMPILED,
        timed=_TIMED,
    )
    paged = Entry(
        "paged_attention",
        paged_attention.paged_attention,
        paged_attention.reference,
        _paged_inputs,
        _paged_cost,
        metered=_paged((3, 4, 2, 200, 64, 16), (2, 8, 1, 127, 128, 8), (2, 3, 3, 33, 32, 1)),
        compiled=_paged((64, 32, 8, 2048, 128, 16), (1, 32, 32, 8192, 64, 16), (8, 64, 1, 4096, 128, 128)),
        timed=_paged((64, 32, 8, 2048, 128, 16), (1, 32, 8, 32768, 128, 16), (256, 16, 16, 1000, 64, 16)),
        tensor_cores=True,
    )
    return replace(pair[0], timed=(*_TIMED, *_ONE_QUERY)), pair[1], paged


def with_gradients(
    name: str,
    launch: Callable[..., torch.Tensor],
    reference: Callable[..., torch.Tensor],
    inputs: Callable[[Shape, torch.dtype, str, int], tuple[Any, ...]],
    cost: Callable[[Shape, torch.dtype], Work],
    backward_cost: Callable[[Shape, torch.dtype], Work],
    *,
    peers: Mapping[str, Callable[..., torch.Tensor]],
    **shapes: tuple[Shape, ...],
) -> tuple[Entry, Entry]:
    """Return an operation twice: forward, and forward with backward, whose first input is the gradient of the
    output."""

    def inputs_with_gradient(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
        arguments = inputs(shape, dtype, device, seed)
        (gradient,) = normal(dtype, device, seed + 1, arguments[0].shape)
        return gradient, *arguments

    forward = Entry(name, launch, reference, inputs, cost, **shapes, tensor_cores=True, peers=peers)
    return forward, Entry(
        f"{name}_with_gradients",
        gradients_of(launch),
        gradients_of(reference),
        inputs_with_gradient,
        lambda shape, dtype: cost(shape, dtype) + backward_cost(shape, dtype),
        **shapes,
        tensor_cores=True,
        peers={peer: gradients_of(function) for peer, function in peers.items()},
    )


def _launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    output = flash_attention.flash_attention(q, k, v, causal=causal)
    assert isinstance(output, torch.Tensor)
    return output


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    return flash_attention.reference(q, k, v, causal=causal)


def _torch_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Call PyTorch's own attention. Its `is_causal` aligns the first query with the first key. For other lengths it
    takes a mask."""
    queries, keys = q.shape[2], k.shape[2]
    grouped = q.shape[1] != k.shape[1]
    if causal and queries != keys:
        mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
    return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


def _inputs(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    query = (shape["batch"], shape["heads"], shape["queries"], shape["head_dim"])
    key = (shape["batch"], shape["kv_heads"], shape["keys"], shape["head_dim"])
    return *normal(dtype, device, seed, query, key, key), shape["causal"]


def _sizes(shape: Shape) -> AttentionSizes:
    return AttentionSizes(**{name: size for name, size in shape.items() if name != "causal"})


def _paged_inputs(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    """Make inputs in which the first sequence's blocks come last, and so on, so no two sequences of the pool lie in
    their own order."""
    sequences, block_size = shape["sequences"], shape["block_size"]
    blocks = -(-shape["length"] // block_size)
    pool = (sequences * blocks * block_size, shape["kv_heads"], shape["head_dim"])
    q, keys, values = normal(dtype, device, seed, (sequences, shape["heads"], shape["head_dim"]), pool, pool)
    tables = torch.arange(sequences * blocks, dtype=torch.int32, device=device).flip(0).view(sequences, blocks)
    lengths = torch.full((sequences,), shape["length"], dtype=torch.int32, device=device)
    return q, keys, values, tables, lengths, block_size


def _paged_cost(shape: Shape, dtype: torch.dtype) -> Work:
    sizes = {name: shape[name] for name in ("sequences", "heads", "kv_heads", "head_dim", "block_size")}
    return paged_attention.cost(tokens=shape["sequences"] * shape["length"], bytes_per_element=dtype.itemsize, **sizes)
