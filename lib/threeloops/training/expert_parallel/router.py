"""A router: the experts of a token, their weights, and the losses that train the router (Shazeer et al. 2017).

Scores are a softmax over all experts, in float32 or wider. The weights of the k chosen experts are their unchanged
scores (Switch). With `normalise` they are divided by their sum (GShard, Mixtral). With k = 1 the weight is then always
1, and only the auxiliary losses train the router.
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["Router", "Routing", "load_balancing_loss", "z_loss"]


@dataclass(frozen=True)
class Routing:
    """A router's decisions for `tokens` tokens, best expert first."""

    logits: Float[Tensor, "tokens experts"]
    scores: Float[Tensor, "tokens experts"]
    experts: Int[Tensor, "tokens k"]
    weights: Float[Tensor, "tokens k"]


class Router(nn.Module):
    """A linear layer without bias whose k highest outputs choose the experts; of equal ones the lower index."""

    def __init__(self, width: int, experts: int, k: int, *, normalise: bool = False) -> None:
        super().__init__()
        if not 1 <= k <= experts:
            raise ValueError(f"k = {k} of {experts} experts: expected at least 1, and no more than there are experts")
        self.k = k
        self.experts = experts
        self.normalise = normalise
        self.weight = nn.Parameter(torch.empty(experts, width))
        nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, x: Float[Tensor, "tokens width"]) -> Routing:
        wide = torch.promote_types(x.dtype, torch.float32)  # a softmax in 16 bits would route by rounding errors
        logits = x.to(wide) @ self.weight.to(wide).T
        scores = logits.softmax(-1)
        # topk does not say which of equal scores comes first.
        experts = scores.detach().sort(dim=-1, descending=True, stable=True).indices[:, : self.k]
        weights = scores.gather(-1, experts)
        if self.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return Routing(logits, scores, experts, weights)


def load_balancing_loss(routing: Routing) -> Float[Tensor, ""]:
    """E · Σₑ fₑ Pₑ over the experts, where fₑ is the share of choices that fell on expert e, before any is dropped, and
    Pₑ its mean score (Fedus et al. 2021, equation 4). It is 1 if both are uniform, and E if one expert gets everything.

    Shares are counts and have no gradient: it passes through the scores. 0 without tokens.
    """
    tokens, experts = routing.scores.shape
    choices = torch.bincount(routing.experts.flatten(), minlength=experts).to(routing.scores.dtype)
    share = choices / max(routing.experts.numel(), 1)
    return experts * (share * routing.scores.sum(0) / max(tokens, 1)).sum()


def z_loss(routing: Routing) -> Float[Tensor, ""]:
    """Mean of (log Σ exp(logits))² over tokens, which keeps logits small (Zoph et al. 2022, "ST-MoE"). 0 without
    tokens."""
    return routing.logits.logsumexp(-1).square().sum() / max(len(routing.logits), 1)
