"""The operations of a GPT that exist twice, as PyTorch's and as the course's Triton kernels. Both compute the same.

Kernels are imported when a model first uses them, since PyTorch's operations need no Triton.
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

Rotation = tuple[Float[Tensor, "... tokens half"], Float[Tensor, "... tokens half"]]
"""Cosines and sines of each token's position."""


class Operations(NamedTuple):
    """`rms_norm(x, weight, epsilon)`; `project(x, qkv, heads, kv_heads, rotation)` gives q, k, v; `attend(q, k, v)`;
    `loss(hidden, head, targets)`. qkv and head are linear layers."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    project: Callable[[Tensor, nn.Linear, int, int, Rotation], tuple[Tensor, Tensor, Tensor]]
    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    loss: Callable[[Tensor, nn.Linear, Tensor], Tensor]


def rotate(x: Float[Tensor, "batch heads tokens dim"], rotation: Rotation) -> Float[Tensor, "batch heads tokens dim"]:
    """Rotate each pair (x[i], x[i + dim / 2]) by its position's angle, in float32 or wider, and round to x's dtype."""
    cosines, sines = rotation
    left, right = x.chunk(2, dim=-1)
    turned = torch.cat([left * cosines - right * sines, right * cosines + left * sines], dim=-1)
    # cat leaves heads of two dimensions in channels-last order, for which PyTorch's attention stores all scores.
    return turned.to(x.dtype).contiguous()


def eager_rms_norm(x: Float[Tensor, "... width"], weight: Tensor, epsilon: float) -> Float[Tensor, "... width"]:
    return functional.rms_norm(x, weight.shape, weight, epsilon)


def eager_project(
    x: Float[Tensor, "batch tokens width"], qkv: nn.Linear, heads: int, kv_heads: int, rotation: Rotation
) -> tuple[Tensor, Tensor, Tensor]:
    """q (batch, heads, tokens, dim), k and v (batch, kv_heads, tokens, dim), q and k rotated."""
    every_head = qkv(x).unflatten(-1, (heads + 2 * kv_heads, -1)).transpose(1, 2)
    q, k, v = every_head.split((heads, kv_heads, kv_heads), dim=1)
    return rotate(q, rotation), rotate(k, rotation), v


def eager_attend(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys dim"],
) -> Float[Tensor, "batch heads queries dim"]:
    """The queries belong to the last keys: each sees its own key and all before it."""
    queries, keys = q.shape[2], k.shape[2]
    if queries == keys:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    # is_causal would align the first query with the first key; a cache holds keys from before the first query.
    visible = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)


def eager_loss(
    hidden: Float[Tensor, "batch tokens width"], head: nn.Linear, targets: Int[Tensor, "batch tokens"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy of the logits, in float32 or wider."""
    logits = head(hidden)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(wide.flatten(0, 1), targets.flatten())


def fused_rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    from threeloops.inner.kernels.rows.rmsnorm import rmsnorm

    return rmsnorm(x, weight, epsilon)


def fused_project(
    x: Tensor, qkv: nn.Linear, heads: int, kv_heads: int, rotation: Rotation
) -> tuple[Tensor, Tensor, Tensor]:
    from threeloops.inner.kernels.matmul.qkv_projection import qkv_projection

    if rotation[0].ndim > 2:  # the kernel takes the same positions for every sequence of the batch
        return eager_project(x, qkv, heads, kv_heads, rotation)
    return qkv_projection(x, qkv.weight, heads=heads, kv_heads=kv_heads, rotary=rotation)


def fused_attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from threeloops.inner.kernels.attention.flash_attention import flash_attention

    return flash_attention(q, k, v, causal=True)


def fused_loss(hidden: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
    """Never holds the logits of all tokens. Makes the gradient in the forward pass, so backward may run only once."""
    from threeloops.inner.kernels.rows.fused_linear_cross_entropy import fused_linear_cross_entropy

    return fused_linear_cross_entropy(hidden.flatten(0, 1), head.weight, targets.flatten())


OPERATIONS = {
    "eager": Operations(eager_rms_norm, eager_project, eager_attend, eager_loss),
    "fused": Operations(fused_rms_norm, fused_project, fused_attend, fused_loss),
}
