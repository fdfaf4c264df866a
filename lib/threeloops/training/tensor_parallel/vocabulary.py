"""Embedding and cross-entropy whose vocabulary is cut over the ranks of a group (Shoeybi et al. 2019, section 3).

The logits of all tokens are the largest tensor of a training step, and no rank ever has all of them. The loss needs
their maximum, the sum of their exponentials, and the target's logit: three numbers per token.
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from threeloops.training.tensor_parallel.layers import own_shard
from threeloops.training.tensor_parallel.layouts import REPLICATED, TERMS, Layout, change_layout, sum_over_ranks

__all__ = ["VocabularyParallelEmbedding", "vocabulary_parallel_cross_entropy"]


class VocabularyParallelEmbedding(nn.Module):
    """Rows of the embedding of this rank's part of the vocabulary; a row of zeros for a token of another rank, and the
    sum over ranks is the embedding.

    Args:
        embedding: the whole layer, the same on all ranks, of which this one keeps its part.
        output: `sharded` along tokens for sequence parallelism: a reduce-scatter in place of the all-reduce.
    """

    def __init__(
        self, embedding: nn.Embedding, group: dist.ProcessGroup | None = None, *, output: Layout = REPLICATED
    ) -> None:
        super().__init__()
        if embedding.padding_idx is not None or embedding.max_norm is not None or embedding.sparse:
            raise ValueError(
                f"{embedding}: expected an embedding without padding_idx, max_norm and sparse; embed such tables on "
                "every rank"
            )
        self.weight = own_shard(embedding.weight, 0, group)
        self.group = group
        self.output = output

    def forward(self, tokens: Int[Tensor, "..."]) -> Float[Tensor, "... width"]:
        row, mine = _own_rows(tokens, len(self.weight), self.group, "token")
        terms = functional.embedding(row, self.weight).masked_fill(~mine[..., None], 0)
        return change_layout(terms, TERMS, self.output, self.group)


def vocabulary_parallel_cross_entropy(
    logits: Float[Tensor, "... own_vocabulary"],
    targets: Int[Tensor, "..."],
    group: dist.ProcessGroup | None = None,
    *,
    ignore_index: int = -100,
) -> Float[Tensor, ""]:
    """Mean of log Σ exp(logits) − logit of the target, in float32 or wider, the same on all ranks.

    `logits` are this rank's part of the vocabulary. Forward takes two all-reduces of three numbers per token together,
    and backward none. As in torch, the mean is over the targets that are not `ignore_index`, and nan if there are none.
    """
    counted = targets != ignore_index
    row, mine = _own_rows(targets.masked_fill(~counted, 0), logits.shape[-1], group, "target")
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    top = logits.detach().amax(-1)  # any number would do: it only keeps the exponentials in range
    dist.all_reduce(top, dist.ReduceOp.MAX, group=group)
    shifted = logits - top[..., None]
    of_target = shifted.gather(-1, row[..., None])[..., 0].masked_fill(~mine, 0)
    total, target = sum_over_ranks(torch.stack([shifted.exp().sum(-1), of_target]), group)
    return (total.log() - target).masked_fill(~counted, 0).sum() / counted.sum()


def _own_rows(ids: Tensor, rows: int, group: dist.ProcessGroup | None, what: str) -> tuple[Tensor, Tensor]:
    """Return the row of each id in this rank's part of the vocabulary, or 0 if it is not there, and whether it is
    there."""
    size = rows * dist.get_world_size(group)
    lowest, highest = (int(ids.min()), int(ids.max())) if ids.numel() else (0, 0)
    if lowest < 0 or highest >= size:
        raise IndexError(f"{what}s from {lowest} to {highest}: expected ids of the vocabulary, 0 to {size - 1}")
    row = ids - rows * dist.get_rank(group)
    mine = (row >= 0) & (row < rows)
    return row.masked_fill(~mine, 0), mine
