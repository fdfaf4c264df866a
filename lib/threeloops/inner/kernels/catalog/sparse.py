"""Attention that leaves most pairs out, and attention to pairs of positions: windows, block masks, 2-simplices; and
the indexer that chooses which tokens to read.

Entries named `…_with_gradients` run forward and backward and return the gradients of q, k, v.
"""

from functools import lru_cache
from typing import Any

import torch

from threeloops.inner.kernels.attention import simplicial_attention
from threeloops.inner.kernels.attention.simplicial_problem import Problem, problem_of
from threeloops.inner.kernels.attention.sizes import AttentionSizes
from threeloops.inner.kernels.catalog.attention import with_gradients
from threeloops.inner.kernels.catalog.entry import Entry, Shape, by_size, shapes
from threeloops.inner.kernels.catalog.rows_functions import drawn, normal
from threeloops.inner.kernels.catalog.sparse_functions import (
    flex_blocks,
    flex_window,
    gathered_windows,
    masked_blocks,
    on_cuda,
)
from threeloops.inner.kernels.sparse import block_sparse_attention, lightning_indexer, sliding_window_attention
from threeloops.inner.kernels.sparse.block_mask import BlockMask

__all__ = ["entries"]


def entries() -> tuple[Entry, ...]:
    heads = ("batch", "heads", "kv_heads", "length", "head_dim")
    windows, blocks = shapes(*heads, "window"), shapes(*heads, "block", "local")
    simplices = shapes(*heads, "window1", "window2")
    indexed = ("tokens", "sequences", "heads", "dim")
    indices = shapes(*indexed)
    return (
        *with_gradients(
            "sliding_window_attention",
            sliding_window_attention.sliding_window_attention,
            sliding_window_attention.reference,
            _window_inputs,
            lambda shape, dtype: sliding_window_attention.cost(_sizes(shape), shape["window"], dtype.itemsize),
            lambda shape, dtype: sliding_window_attention.backward_cost(_sizes(shape), shape["window"], dtype.itemsize),
            peers={"SDPA with a mask": sliding_window_attention.reference, **on_cuda(flex_attention=flex_window)},
            metered=windows((1, 4, 2, 512, 64, 128), (2, 2, 2, 257, 128, 100)),
            compiled=windows((1, 32, 8, 8192, 128, 4096), (4, 64, 8, 4096, 64, 128)),
            timed=windows((1, 32, 8, 16384, 128, 4096), (4, 16, 16, 4096, 64, 512), (2, 32, 8, 5003, 128, 1000)),
        ),
        *with_gradients(
            "block_sparse_attention",
            block_sparse_attention.block_sparse_attention,
            block_sparse_attention.reference,
            _block_inputs,
            lambda shape, dtype: block_sparse_attention.cost(_local_and_global(shape), _sizes(shape), dtype.itemsize),
            lambda shape, dtype: block_sparse_attention.backward_cost(
                _local_and_global(shape), _sizes(shape), dtype.itemsize
            ),
            peers={"torch": masked_blocks, **on_cuda(flex_attention=flex_blocks)},
            metered=blocks((1, 2, 1, 1024, 64, 128, 2), (2, 2, 2, 321, 128, 64, 1)),
            compiled=blocks((1, 32, 8, 8192, 128, 128, 4), (1, 16, 16, 8192, 64, 64, 4)),
            timed=blocks((1, 32, 8, 16384, 128, 128, 8), (1, 16, 16, 8192, 64, 64, 8), (2, 32, 8, 5003, 128, 128, 4)),
        ),
        *with_gradients(
            "simplicial_attention",
            simplicial_attention.simplicial_attention,
            gathered_windows,
            _simplicial_inputs,
            lambda shape, dtype: simplicial_attention.cost(_problem(shape, dtype)),
            lambda shape, dtype: simplicial_attention.backward_cost(_problem(shape, dtype)),
            peers={},
            metered=simplices((1, 2, 1, 128, 64, 64, 8), (1, 1, 1, 97, 128, 33, 5)),
            compiled=simplices(
                (1, 16, 16, 8192, 128, 512, 32), (1, 16, 16, 8192, 64, 512, 32), (1, 16, 16, 8192, 32, 256, 16)
            ),
            timed=simplices((1, 8, 8, 4096, 128, 512, 32), (1, 8, 8, 4096, 64, 512, 32), (1, 8, 2, 3001, 128, 500, 24)),
        ),
        Entry(
            "index_scores",
            lightning_indexer.index_scores,
            lightning_indexer.reference,
            drawn(("sequences", "heads", "dim"), ("sequences", "tokens", "dim"), ("sequences", "heads")),
            by_size(lightning_indexer.cost, *indexed),
            metered=indices((1000, 2, 64, 128), (257, 3, 8, 64)),
            compiled=indices((32768, 8, 64, 128), (4097, 64, 32, 64)),
            timed=indices((131072, 4, 64, 128), (5003, 16, 32, 64)),
            dtypes=(torch.float16, torch.bfloat16),
            tensor_cores=True,
        ),
    )


def _window_inputs(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    return *normal(dtype, device, seed, *_of_q_and_keys(shape, keys=2)), shape["window"]


def _block_inputs(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    return *normal(dtype, device, seed, *_of_q_and_keys(shape, keys=2)), _local_and_global(shape)


def _simplicial_inputs(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> tuple[Any, ...]:
    return *normal(dtype, device, seed, *_of_q_and_keys(shape, keys=4)), shape["window1"], shape["window2"]


def _local_and_global(shape: Shape) -> BlockMask:
    """Make a causal mask in which each block of queries sees its own and the `local` blocks before it, and the first
    block of all."""
    return _mask(-(-shape["length"] // shape["block"]), shape["block"], shape["local"])


@lru_cache(maxsize=32)
def _mask(blocks: int, block_size: int, local: int) -> BlockMask:
    near = torch.ones(blocks, blocks, dtype=torch.bool).tril().triu(-local)
    near[:, 0] = True
    return BlockMask(near, block_size, causal=True)


def _of_q_and_keys(shape: Shape, keys: int) -> list[tuple[int, ...]]:
    batch, length, head_dim = shape["batch"], shape["length"], shape["head_dim"]
    return [(batch, shape["heads"], length, head_dim), *[(batch, shape["kv_heads"], length, head_dim)] * keys]


def _sizes(shape: Shape) -> AttentionSizes:
    sizes = {name: shape[name] for name in ("batch", "heads", "kv_heads", "head_dim")}
    return AttentionSizes(**sizes, queries=shape["length"], keys=shape["length"])


def _problem(shape: Shape, dtype: torch.dtype) -> Problem:
    return problem_of(*_simplicial_inputs(shape, dtype, "meta", 0))
