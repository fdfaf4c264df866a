"""Sparse attention for decoding: an indexer scores all earlier tokens cheaply, and attention reads only the best.

Sources: DeepSeek-AI 2025, "DeepSeek-V3.2" (arXiv:2512.02556), section 2.1: an indexer with few numbers per token, and
the 2,048 tokens with the highest scores (DSA). Yuan et al. 2025, "Native Sparse Attention" (arXiv:2502.11089): whole
blocks of tokens are chosen, so that loads are contiguous; the query's own block is always among them.

The score of token s is Σ_j weight_j · max(0, q_j · key_s) over the indexer's heads j, which share one key per token. So
the indexer still looks at every token, but at `dim` elements of it instead of all keys and values. Attention over what
was chosen is `paged_attention`: a block table may as well list chosen blocks.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from threeloops.inner.costs import Work, require_positive
from threeloops.inner.kernels import launching

__all__ = ["Choice", "choose_blocks", "cost", "index_scores", "index_scores_kernel", "reference"]

_DIMS = (16, 32, 64, 128)
_SMALLEST_DOT = 16
_LARGEST_HEADS = 128


@triton.jit
def index_scores_kernel(
    q, keys, weights, scores, tokens, heads,
    DIM: tl.constexpr, HEADS: tl.constexpr, BLOCK_N: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.arange(0, HEADS)
    channels = tl.arange(0, DIM)
    q_offsets = (sequence * heads + rows[:, None]) * DIM + channels[None, :]
    q_values = tl.load(q + q_offsets, mask=rows[:, None] < heads, other=0.0)
    k_offsets = (sequence * tokens + columns[:, None]) * DIM + channels[None, :]
    k_values = tl.load(keys + k_offsets, mask=columns[:, None] < tokens, other=0.0)
    weight = tl.load(weights + sequence * heads + rows, mask=rows < heads, other=0.0).to(tl.float32)
    products = tl.dot(q_values, k_values.T, input_precision=INPUT_PRECISION)
    result = tl.sum(tl.maximum(products, 0.0) * weight[:, None], 0)
    tl.store(scores + sequence * tokens + columns, result, mask=columns < tokens)


def index_scores(q: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the indexer's score of every token for each sequence's query, float32 (sequences, tokens).

    q is (sequences, heads, dim), keys (sequences, tokens, dim), weights (sequences, heads), in fp16, bf16 or float32;
    dim 16, 32, 64 or 128, and at most 128 heads. Indexers use few bits, so float32 is only for tests: on a GPU its
    tiles spill. Raises ValueError for arguments that cannot be computed.
    """
    launching.require_tensors(q=q, keys=keys, weights=weights)
    launching.require_dimensions("q", q, "sequences, heads, dim")
    launching.require_dimensions("keys", keys, "sequences, tokens, dim")
    sequences, heads, dim = q.shape
    launching.require_head_dim(dim, _DIMS)
    launching.require_shape("keys", keys, (sequences, keys.shape[1], dim), "sequences and dim of q")
    launching.require_shape("weights", weights, (sequences, heads), "sequences and heads of q")
    if not 1 <= heads <= _LARGEST_HEADS:
        raise ValueError(f"heads = {heads}: expected 1 to {_LARGEST_HEADS}; use fewer heads in the indexer")
    tokens = keys.shape[1]
    scores = torch.empty(sequences, tokens, dtype=torch.float32, device=q.device)
    if scores.numel():
        rows = max(_SMALLEST_DOT, triton.next_power_of_2(heads))
        columns = 32 if q.dtype == torch.float32 else 128
        index_scores_kernel[triton.cdiv(tokens, columns), sequences](
            q.contiguous(), keys.contiguous(), weights.contiguous(), scores, tokens, heads,
            DIM=dim, HEADS=rows, BLOCK_N=columns, INPUT_PRECISION="ieee", num_warps=4, num_stages=1,
        )  # fmt: skip
    return scores


def reference(q: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the same in PyTorch, which stores a product per head and token."""
    wide = torch.promote_types(q.dtype, torch.float32)
    products = torch.einsum("shd,std->sht", q.to(wide), keys.to(wide)).relu()
    return torch.einsum("sht,sh->st", products, weights.to(wide))


def cost(tokens: int, sequences: int, heads: int, dim: int, bytes_per_element: float = 2) -> Work:
    """Return the least work: queries, weights and all keys are read once, and a float32 score per token is written.

    FLOPs per token and head: 2·dim for the product, and 3 for max, weight and sum.
    """
    require_positive(tokens=tokens, sequences=sequences, heads=heads, dim=dim, bytes_per_element=bytes_per_element)
    elements = sequences * (tokens * dim + heads * dim + heads)
    return Work(elements * bytes_per_element + 4 * sequences * tokens, sequences * tokens * heads * (2 * dim + 3))


class Choice(NamedTuple):
    """Chosen blocks, as `paged_attention` takes them: tables (sequences, blocks), ascending, and how many tokens the
    named blocks hold, (sequences,)."""

    blocks: torch.Tensor
    lengths: torch.Tensor


def choose_blocks(scores: torch.Tensor, lengths: torch.Tensor, block_size: int, count: int) -> Choice:
    """Choose `count` blocks per sequence: that of the last token, and those with the highest score of any token.

    scores are (sequences, capacity), of which each sequence's first `lengths` count. A sequence with fewer blocks gets
    all of them. A block of one token is DSA's choice of tokens. Raises ValueError if a size does not fit.
    """
    sequences, capacity = scores.shape
    if block_size < 1 or capacity % block_size:
        raise ValueError(f"block_size = {block_size}: expected a positive divisor of the {capacity} scores")
    if count < 1:
        raise ValueError(f"count = {count}: expected at least 1 block; the last token's block is always chosen")
    launching.require_shape("lengths", lengths, (sequences,), "sequences of scores")
    blocks = capacity // block_size
    position = torch.arange(capacity, device=scores.device)
    best = scores.masked_fill(position >= lengths[:, None], -torch.inf).unflatten(1, (blocks, block_size)).amax(-1)
    last = ((lengths - 1) // block_size)[:, None]
    best = best.scatter(1, last, torch.inf)
    chosen = best.topk(min(count, blocks), 1).indices
    absent = chosen > last  # fewer blocks than `count`: nobody reads these places
    ascending = chosen.masked_fill(absent, blocks).sort(1).values.clamp(max=blocks - 1)
    held = (~absent).sum(1) * block_size - ((last[:, 0] + 1) * block_size - lengths)
    return Choice(ascending.int(), held.int())
