"""The least that block-sparse attention must move and compute."""

import torch

from threeloops.inner.costs import Work
from threeloops.inner.kernels.attention.sizes import AttentionSizes
from threeloops.inner.kernels.sparse.block_mask import BlockMask

__all__ = ["backward_cost", "cost"]


def cost(mask: BlockMask, sizes: AttentionSizes, bytes_per_element: float = 2) -> Work:
    """Return the least work of the forward pass: q and the keys and values that any query sees read once, the output
    and a float32 log-sum-exp written; without the mask's lists, 4 bytes per tile. FLOPs: 4·head_dim + 6 per visible
    pair."""
    queries = sizes.heads * sizes.queries
    elements = 2 * (queries + _seen_keys(mask, sizes)) * sizes.head_dim
    per_batch = Work(elements * bytes_per_element + 4 * queries, (4 * sizes.head_dim + 6) * _visible_pairs(mask, sizes))
    return sizes.batch * per_batch


def backward_cost(mask: BlockMask, sizes: AttentionSizes, bytes_per_element: float = 2) -> Work:
    """Return the least work of the two backward kernels. The first reads q, the output and its gradient, the keys and
    values that are seen, the log-sum-exp, and writes dq and delta; the second reads k and v, and q, the gradient, the
    log-sum-exp and delta of queries that see anything, and writes dk and dv. FLOPs of a pair: (6 + 8)·head_dim + 2·5.
    """
    queries, keys, seeing = sizes.heads * sizes.queries, sizes.kv_heads * sizes.keys, _seeing_queries(mask, sizes)
    elements = (4 * queries + 2 * _seen_keys(mask, sizes) + 4 * keys + 2 * seeing) * sizes.head_dim
    per_row = 4 * (2 * queries + 2 * seeing)
    per_batch = Work(elements * bytes_per_element + per_row, (14 * sizes.head_dim + 10) * _visible_pairs(mask, sizes))
    return sizes.batch * per_batch


def _visible_pairs(mask: BlockMask, sizes: AttentionSizes) -> int:
    """Count the pairs of query and key that attend, in all heads."""
    queries, keys = (_elements(length, mask.block_size) for length in (sizes.queries, sizes.keys))
    pairs = queries[:, None] * keys[None, :]
    if mask.causal:
        pairs = pairs - torch.diag(queries * (queries - 1) // 2)
    return int((mask.by_head.expand(sizes.heads, -1, -1) * pairs).sum())


def _seen_keys(mask: BlockMask, sizes: AttentionSizes) -> int:
    """Count the keys of all key heads that any query of their group sees."""
    seen = mask.by_head.expand(sizes.heads, -1, -1).any(1).reshape(sizes.kv_heads, sizes.group, -1).any(1)
    return int((seen * _elements(sizes.keys, mask.block_size)).sum())


def _seeing_queries(mask: BlockMask, sizes: AttentionSizes) -> int:
    """Count the queries of all heads that see any key."""
    seeing = mask.by_head.expand(sizes.heads, -1, -1).any(2)
    return int((seeing * _elements(sizes.queries, mask.block_size)).sum())


def _elements(length: int, block: int) -> torch.Tensor:
    """Return how many positions each block of a sequence has. Only the last may have fewer."""
    return torch.arange(0, length, block).neg().add(length).clamp(max=block)
