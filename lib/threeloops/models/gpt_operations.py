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

__all__ = ["OPERATIONS", "Rotation", "rotate"]

Rotation = tuple[Float[Tensor, "... tokens half"], Float[Tensor, "... tokens half"]]
"""Cosines and sines of each token's position, for half a head or, in decoding, for a whole one."""

_Norms = tuple[nn.Module, nn.Module]
"""The norms of a head's queries and of its keys."""


class _Operations(NamedTuple):
    """`rms_norm(x, weight, epsilon)`; `project(x, qkv, heads, kv_heads, rotation, norms)` gives q, k, v;
    `attend(q, k, v, window)`; `loss(hidden, head, targets)`. qkv and head are linear layers; norms and window may be
    None."""

    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    project: Callable[[Tensor, nn.Linear, int, int, Rotation, _Norms | None], tuple[Tensor, Tensor, Tensor]]
    attend: Callable[..., Tensor]
    loss: Callable[[Tensor, nn.Linear, Tensor], Tensor]


def rotate(x: Float[Tensor, "... tokens dim"], rotation: Rotation) -> Float[Tensor, "... tokens dim"]:
    """Rotate each pair (x[i], x[i + dim / 2]) by its position's angle, in float32 or wider, and round to x's dtype."""
    cosines, sines = rotation
    half = x.shape[-1] // 2
    if cosines.shape[-1] > half:  # (cosines, cosines) and (−sines, sines), for decoding: three operators
        return torch.addcmul(x * cosines, x.roll(half, -1), sines).to(x.dtype).contiguous()
    left, right = x.chunk(2, dim=-1)
    turned = torch.cat([left * cosines - right * sines, right * cosines + left * sines], dim=-1)
    # cat leaves heads of two dimensions in channels-last order, for which PyTorch's attention stores all scores.
    return turned.to(x.dtype).contiguous()


def _eager_rms_norm(x: Float[Tensor, "... width"], weight: Tensor, epsilon: float) -> Float[Tensor, "... width"]:
    return functional.rms_norm(x, weight.shape, weight, epsilon)


def _eager_project(
    x: Float[Tensor, "batch tokens width"],
    qkv: nn.Linear,
    heads: int,
    kv_heads: int,
    rotation: Rotation,
    norms: _Norms | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """q (batch, heads, tokens, dim), k and v (batch, kv_heads, tokens, dim), q and k normalised and rotated."""
    every_head = qkv(x).unflatten(-1, (heads + 2 * kv_heads, -1)).transpose(1, 2)
    if (
        rotation[0].ndim > 2 and norms is None
    ):  # decoding, where a step is a few tokens and so many operators that each of them counts
        q_and_k, v = every_head.split((heads + kv_heads, kv_heads), dim=1)
        q, k = rotate(q_and_k, rotation).split((heads, kv_heads), dim=1)
        return q, k, v
    q, k, v = every_head.split((heads, kv_heads, kv_heads), dim=1)
    if norms is not None:
        q = norms[0](q)
        k = norms[1](k)
    return rotate(q, rotation), rotate(k, rotation), v


def _eager_attend(
    q: Float[Tensor, "batch heads queries dim"],
    k: Float[Tensor, "batch kv_heads keys dim"],
    v: Float[Tensor, "batch kv_heads keys dim"],
    window: int | None = None,
) -> Float[Tensor, "batch heads queries dim"]:
    """The queries belong to the last keys: each sees its own key and all before it, the last `window` of these."""
    queries = q.shape[2]
    keys = k.shape[2]
    narrow = window is not None and window < keys
    if queries == keys and not narrow:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    # is_causal would align the first query with the first key; a cache holds keys from before the first query.
    visible = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    if narrow:
        visible = visible.triu(keys - queries - window + 1)
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)


def _eager_loss(
    hidden: Float[Tensor, "batch tokens width"], head: nn.Linear, targets: Int[Tensor, "batch tokens"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy of the logits, in float32 or wider."""
    logits = head(hidden)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(wide.flatten(0, 1), targets.flatten())


def _fused_rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    from threeloops.inner.kernels.rows.rmsnorm import rmsnorm

    return rmsnorm(x, weight, epsilon)


def _fused_project(
    x: Tensor, qkv: nn.Linear, heads: int, kv_heads: int, rotation: Rotation, norms: _Norms | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    from threeloops.inner.kernels.matmul.qkv_projection import qkv_projection

    # The kernel takes the same positions for every sequence of the batch, no bias, and no norms of heads.
    if rotation[0].ndim > 2 or qkv.bias is not None or norms is not None:
        return _eager_project(x, qkv, heads, kv_heads, rotation, norms)
    return qkv_projection(x, qkv.weight, heads=heads, kv_heads=kv_heads, rotary=rotation)


def _fused_attend(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    from threeloops.inner.kernels.attention.flash_attention import flash_attention

    if window is not None and window < k.shape[2]:
        if q.shape[2] != k.shape[2]:  # the kernel has a key for every query
            return _eager_attend(q, k, v, window)
        from threeloops.inner.kernels.sparse.sliding_window_attention import sliding_window_attention

        return sliding_window_attention(q, k, v, window)
    return flash_attention(q, k, v, causal=True)


def _fused_loss(hidden: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
    """Never holds the logits of all tokens. Makes the gradient in the forward pass, so backward may run only once."""
    from threeloops.inner.kernels.rows.fused_linear_cross_entropy import fused_linear_cross_entropy

    return fused_linear_cross_entropy(hidden.flatten(0, 1), head.weight, targets.flatten())


OPERATIONS = {
    "eager": _Operations(_eager_rms_norm, _eager_project, _eager_attend, _eager_loss),
    "fused": _Operations(_fused_rms_norm, _fused_project, _fused_attend, _fused_loss),
}
