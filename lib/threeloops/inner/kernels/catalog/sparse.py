"""Attention that leaves most pairs out, and attention to pairs of positions: windows, block masks, 2-simplices.

Entries named `…_with_gradients` run forward and backward and return the gradients of q, k, v.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch

from threeloops.inner.costs import Work
from threeloops.inner.kernels.attention import simplicial_attention
from threeloops.inner.kernels.attention.sizes import AttentionSizes
from threeloops.inner.kernels.catalog.entry import Entry, Shape
from threeloops.inner.kernels.catalog.rows_functions import normal
from threeloops.inner.kernels.catalog.sparse_functions import (
    flex_blocks,
    flex_window,
    gathered_windows,
    gradients_of,
    masked_blocks,
    on_cuda,
)
from threeloops.inner.kernels.sparse import block_sparse_attention, sliding_window_attention
from threeloops.inner.kernels.sparse.block_mask import BlockMask


def entries() -> tuple[Entry, ...]:
    return (
        *_with_gradients(
            name="sliding_window_attention",
            launch=sliding_window_attention.sliding_window_attention,
            reference=sliding_window_attention.reference,
            inputs=window_inputs,
            cost=lambda shape, dtype: sliding_window_attention.cost(**_sizes(shape, dtype), window=shape["window"]),
            backward_cost=lambda shape, dtype: sliding_window_attention.backward_cost(
                **_sizes(shape, dtype), window=shape["window"]
            ),
            peers={"SDPA with a mask": sliding_window_attention.reference, **on_cuda(flex_attention=flex_window)},
            metered=(
                {"batch": 1, "heads": 4, "kv_heads": 2, "length": 512, "head_dim": 64, "window": 128},
                {"batch": 2, "heads": 2, "kv_heads": 2, "length": 257, "head_dim": 128, "window": 100},
            ),
            compiled=(
                {"batch": 1, "heads": 32, "kv_heads": 8, "length": 8192, "head_dim": 128, "window": 4096},
                {"batch": 4, "heads": 64, "kv_heads": 8, "length": 4096, "head_dim": 64, "window": 128},
            ),
            timed=(
                {"batch": 1, "heads": 32, "kv_heads": 8, "length": 16384, "head_dim": 128, "window": 4096},
                {"batch": 4, "heads": 16, "kv_heads": 16, "length": 4096, "head_dim": 64, "window": 512},
                {"batch": 2, "heads": 32, "kv_heads": 8, "length": 5003, "head_dim": 128, "window": 1000},
            ),
        ),
        *_with_gradients(
            name="block_sparse_attention",
            launch=block_sparse_attention.block_sparse_attention,
            reference=block_sparse_attention.reference,
            inputs=block_inputs,
            cost=lambda shape, dtype: block_sparse_attention.cost(
                local_and_global(shape), _attention_sizes(shape), dtype.itemsize
            ),
            backward_cost=lambda shape, dtype: block_sparse_attention.backward_cost(
                local_and_global(shape), _attention_sizes(shape), dtype.itemsize
            ),
            peers={"torch": masked_blocks, **on_cuda(flex_attention=flex_blocks)},
            metered=(
                {"batch": 1, "heads": 2, "kv_heads": 1, "length": 1024, "head_dim": 64, "block": 128, "local": 2},
                {"batch": 2, "heads": 2, "kv_heads": 2, "length": 321, "head_dim": 128, "block": 64, "local": 1},
            ),
            compiled=(
                {"batch": 1, "heads": 32, "kv_heads": 8, "length": 8192, "head_dim": 128, "block": 128, "local": 4},
                {"batch": 1, "heads": 16, "kv_heads": 16, "length": 8192, "head_dim": 64, "block": 64, "local": 4},
            ),
            timed=(
                {"batch": 1, "heads": 32, "kv_heads": 8, "length": 16384, "head_dim": 128, "block": 128, "local": 8},
                {"batch": 1, "heads": 16, "kv_heads": 16, "length": 8192, "head_dim": 64, "block": 64, "local": 8},
                {"batch": 2, "heads": 32, "kv_heads": 8, "length": 5003, "head_dim": 128, "block": 128, "local": 4},
            ),
        ),
        *_with_gradients(
            name="simplicial_attention",
            launch=simplicial_attention.simplicial_attention,
            reference=gathered_windows,
            inputs=simplicial_inputs,
            cost=lambda shape, dtype: simplicial_attention.cost(**_sizes(shape, dtype), **_windows(shape)),
            backward_cost=lambda shape, dtype: simplicial_attention.backward_cost(
                **_sizes(shape, dtype), **_windows(shape)
            ),
            peers={},
            metered=(
                {"batch": 1, "heads": 2, "kv_heads": 1, "length": 128, "head_dim": 64, "window1": 64, "window2": 8},
                {"batch": 1, "heads": 1, "kv_heads": 1, "length": 97, "head_dim": 128, "window1": 33, "window2": 5},
            ),
            compiled=(
                {
                    "batch": 1,
                    "heads": 16,
                    "kv_heads": 16,
                    "length": 8192,
                    "head_dim": 128,
                    "window1": 512,
                    "window2": 32,
                },
                {
                    "batch": 1,
                    "heads": 16,
                    "kv_heads": 16,
                    "length": 8192,
                    "head_dim": 64,
                    "window1": 512,
                    "window2": 32,
                },
                {
                    "batch": 1,
                    "heads": 16,
                    "kv_heads": 16,
                    "length": 8192,
                    "head_dim": 32,
                    "window1": 256,
                    "window2": 16,
                },
            ),
            timed=(
                {"batch": 1, "heads": 8, "kv_heads": 8, "length": 4096, "head_dim": 128, "window1": 512, "window2": 32},
                {"batch": 1, "heads": 8, "kv_heads": 8, "length": 4096, "head_dim": 64, "window1": 512, "window2": 32},
                {"batch": 1, "heads": 8, "kv_heads": 2, "length": 3001, "head_dim": 128, "window1": 500, "window2": 24},
            ),
        ),
    )


def _with_gradients(
    *,
    name: str,
    launch: Callable[..., torch.Tensor],
    reference: Callable[..., torch.Tensor],
    inputs: Callable[[Shape, torch.dtype, str, int], tuple[Any, ...]],
    cost: Callable[[Shape, torch.dtype], Work],
    backward_cost: Callable[[Shape, torch.dtype], Work],
    peers: Mapping[str, Callable[..., torch.Tensor]],
    **shapes: tuple[Shape, ...],
) -> tuple[Entry, Entry]:
    """An operation twice: forward, and forward with backward, whose first input is the gradient of the output."""

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


def window_inputs(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    return *normal(dtype, device, seed, *_of_q_and_keys(shape, keys=2)), shape["window"]


def block_inputs(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    return *normal(dtype, device, seed, *_of_q_and_keys(shape, keys=2)), local_and_global(shape)


def simplicial_inputs(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    return *normal(dtype, device, seed, *_of_q_and_keys(shape, keys=4)), shape["window1"], shape["window2"]


def local_and_global(shape: Shape) -> BlockMask:
    """Causal: each block of queries sees its own and the `local` blocks before it, and the first block of all."""
    return _local_and_global(-(-shape["length"] // shape["block"]), shape["block"], shape["local"])


@lru_cache(maxsize=32)
def _local_and_global(blocks: int, block_size: int, local: int) -> BlockMask:
    near = torch.ones(blocks, blocks, dtype=torch.bool).tril().triu(-local)
    near[:, 0] = True
    return BlockMask(near, block_size, causal=True)


def _of_q_and_keys(shape: Shape, keys: int) -> list[tuple[int, ...]]:
    batch, length, head_dim = shape["batch"], shape["length"], shape["head_dim"]
    return [(batch, shape["heads"], length, head_dim), *[(batch, shape["kv_heads"], length, head_dim)] * keys]


def _sizes(shape: Shape, dtype: torch.dtype) -> dict[str, int]:
    """What the cost functions call sizes."""
    names = ("batch", "heads", "kv_heads", "length", "head_dim")
    return {name: shape[name] for name in names} | {"bytes_per_element": dtype.itemsize}


def _windows(shape: Shape) -> dict[str, int]:
    return {name: shape[name] for name in ("window1", "window2")}


def _attention_sizes(shape: Shape) -> AttentionSizes:
    sizes = {name: shape[name] for name in ("batch", "heads", "kv_heads", "head_dim")}
    return AttentionSizes(**sizes, queries=shape["length"], keys=shape["length"])
