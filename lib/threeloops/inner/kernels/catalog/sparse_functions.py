"""PyTorch functions with which the entries of `catalog.sparse` are compared, and a wrapper that returns gradients."""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch.nn import functional

from threeloops.inner.kernels.sparse import block_sparse_attention
from threeloops.inner.kernels.sparse.block_mask import BlockMask

__all__ = ["flex_blocks", "flex_window", "gathered_windows", "gradients_of", "masked_blocks", "on_cuda"]


@cache  # so that the gradients of one function compare equal
def gradients_of(function: Callable[..., torch.Tensor]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a function: (gradient of the output, *arguments) → the gradients of the tensors among the arguments."""

    def gradients(gradient: torch.Tensor, *arguments: Any) -> tuple[torch.Tensor, ...]:
        leaves = [argument.detach().requires_grad_() for argument in arguments if isinstance(argument, torch.Tensor)]
        rest = [argument for argument in arguments if not isinstance(argument, torch.Tensor)]
        with torch.enable_grad():
            return torch.autograd.grad(function(*leaves, *rest), leaves, gradient)

    return gradients


def gathered_windows(
    q: torch.Tensor, k1: torch.Tensor, k2: torch.Tensor, v1: torch.Tensor, v2: torch.Tensor, window1: int, window2: int
) -> torch.Tensor:
    """Compute 2-simplicial attention in PyTorch with length·window1·head_dim elements per head in memory instead of
    length³. It gathers each query's windows, then two batched matrix products do the work of the kernel's tiles."""
    repeats = q.shape[1] // k1.shape[1]
    k1, v1 = (_window(tensor.repeat_interleave(repeats, 1), window1) for tensor in (k1, v1))
    k2, v2 = (_window(tensor.repeat_interleave(repeats, 1), window2) for tensor in (k2, v2))
    length = torch.arange(q.shape[2], device=q.device)[:, None]
    absent1, absent2 = (length - torch.arange(window - 1, -1, -1, device=q.device) < 0 for window in (window1, window2))
    logits = (q[:, :, :, None] * k2) @ k1.mT
    logits = logits.to(torch.promote_types(q.dtype, torch.float32)) * q.shape[-1] ** -0.5
    logits = logits.masked_fill(absent1[:, None, :] | absent2[:, :, None], float("-inf"))
    weights = logits.flatten(-2).softmax(-1).view_as(logits).to(q.dtype)
    return ((weights @ v1) * v2).sum(-2)


def _window(keys: torch.Tensor, window: int) -> torch.Tensor:
    """Gather the positions that each position sees: (batch, heads, length, head_dim) → (batch, heads, length, window,
    head_dim)."""
    return functional.pad(keys, (0, 0, window - 1, 0)).unfold(2, window, 1).mT


def masked_blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: BlockMask) -> torch.Tensor:
    """Call PyTorch's attention under a mask of single positions, which is made once, as in a model."""
    return block_sparse_attention.attend(q, k, v, *_positions(mask, q.shape[2], k.shape[2], q.device))


@lru_cache(maxsize=1)  # a mask of 16,384 positions takes 256 MiB
def _positions(mask: BlockMask, queries: int, keys: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    return block_sparse_attention.visible_positions(mask, queries, keys, device)


def flex_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """Call PyTorch's FlexAttention, compiled."""
    return _flex(q, k, v, _flex_window_mask(q.shape[2], window))


def flex_blocks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: BlockMask) -> torch.Tensor:
    """Call PyTorch's FlexAttention, compiled."""
    return _flex(q, k, v, _flex_block_mask(q.shape[2], mask))


def _flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_mask: Any) -> torch.Tensor:
    return _compiled_flex_attention()(q, k, v, block_mask=block_mask, enable_gqa=q.shape[1] != k.shape[1])


@lru_cache(maxsize=1)
def _compiled_flex_attention() -> Callable[..., torch.Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    # fullgraph: raise rather than fall back to the uncompiled operator, which would be timed under this name.
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


@lru_cache(maxsize=8)
def _flex_window_mask(length: int, window: int) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < window), None, None, length, length, "cuda")


@lru_cache(maxsize=8)
def _flex_block_mask(length: int, mask: BlockMask) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    blocks, size = mask.by_head[0].to("cuda"), mask.block_size
    return create_block_mask(
        lambda b, h, i, j: (i >= j) & blocks[i // size, j // size], None, None, length, length, "cuda"
    )


def on_cuda(**peers: Callable[..., torch.Tensor]) -> dict[str, Callable[..., torch.Tensor]]:
    """Return these peers if there is a GPU to compile them for, else none."""
    return peers if torch.cuda.is_available() else {}
