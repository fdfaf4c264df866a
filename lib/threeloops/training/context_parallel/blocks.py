"""Attention of one block of queries to one block of keys, as pieces that can be merged exactly.

To merge the result of a block with that of a later one, the log of its sum of exponentials is enough: this is the
online softmax (Milakov and Gimelshein 2018). Backward recomputes the probabilities from this log (Dao et al. 2022,
"FlashAttention", section 3.1). Shapes: q (batch, kv_heads, group, queries, dim), where `group` query heads share a key
head; k and v (batch, kv_heads, keys, dim). All are float32 or wider.
"""

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["attend_block", "block_gradients", "merge"]

_Queries = Float[Tensor, "batch kv_heads group queries dim"]
_Keys = Float[Tensor, "batch kv_heads keys dim"]
_PerQuery = Float[Tensor, "batch kv_heads group queries"]


def attend_block(q: _Queries, k: _Keys, v: _Keys, causal: bool) -> tuple[_Queries, _PerQuery]:
    """Softmax(q kᵀ / √dim) v over these keys alone, and log Σ exp(scores). With `causal` both have the same positions,
    and a query sees the keys up to its own."""
    scores = _scores(q, k, causal)
    log_sum = scores.logsumexp(-1)
    return (scores - log_sum[..., None]).exp() @ v[:, :, None], log_sum


def merge(out: _Queries, log_sum: _PerQuery, more: _Queries, more_log_sum: _PerQuery) -> tuple[_Queries, _PerQuery]:
    """Attention over two sets of keys from attention over each: a mean weighted by their sums of exponentials."""
    total = torch.logaddexp(log_sum, more_log_sum)
    return out * (log_sum - total).exp()[..., None] + more * (more_log_sum - total).exp()[..., None], total


def block_gradients(
    q: _Queries, k: _Keys, v: _Keys, causal: bool, log_sum: _PerQuery, gradient: _Queries, inner: _PerQuery
) -> tuple[_Queries, _Keys, _Keys]:
    """Return the gradients of q, k and v from this block of keys.

    Args:
        log_sum: the log of the sum over all keys, so that probabilities are those of the whole softmax.
        gradient: the gradient of the output.
        inner: Σ gradient · output for each query.
    """
    probabilities = (_scores(q, k, causal) - log_sum[..., None]).exp()
    of_scores = probabilities * (gradient @ v[:, :, None].mT - inner[..., None]) * q.shape[-1] ** -0.5
    of_k = of_scores.mT @ q
    of_v = probabilities.mT @ gradient
    return of_scores @ k[:, :, None], of_k.sum(2), of_v.sum(2)


def _scores(q: _Queries, k: _Keys, causal: bool) -> Tensor:
    scores = q @ k[:, :, None].mT * q.shape[-1] ** -0.5
    if not causal:
        return scores
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(later, -torch.inf)
