"""Ring attention: queries stay on their rank, and keys and values travel around the ring (Liu et al. 2023).

In step s a rank has the keys and values of the rank s places before it. It passes them on while it computes with them,
so the transfer is hidden if attention to a block takes longer than sending it. No rank ever has all keys, and the
result equals that of attention on one device, to rounding.
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor

from threeloops.training.cluster import compute
from threeloops.training.collectives import TorchPeers
from threeloops.training.context_parallel.blocks import attend_block, block_gradients, merge
from threeloops.training.context_parallel.order import Order, chunks_of, visible_pairs

__all__ = ["BACKWARD_WORK", "ring_attention"]

BACKWARD_WORK = 2.5
"""Arithmetic of the backward pass over that of the forward pass: five matrix products per block against two."""


def ring_attention(
    q: Float[Tensor, "batch heads own_tokens dim"],
    k: Float[Tensor, "batch kv_heads own_tokens dim"],
    v: Float[Tensor, "batch kv_heads own_tokens dim"],
    group: dist.ProcessGroup | None = None,
    *,
    order: Order = "zigzag",
    seconds_per_pair: float = 0.0,
) -> Float[Tensor, "batch heads own_tokens dim"]:
    """Causal attention of this rank's queries to the keys of all ranks, for tokens placed as `token_positions` says.

    A rank sends 2 (n − 1) blocks of the size of its k forward, and twice as many backward: k and v again, and their
    gradients, which end at the rank that has the keys.

    Args:
        seconds_per_pair: charged with `compute` for each pair of a query and a key, all heads and sequences together;
            backward takes `BACKWARD_WORK` times as long.
    """
    size = dist.get_world_size(group)
    if k.shape != v.shape or q.dim() != 4 or q[:, :1].shape != k[:, :1].shape or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}: expected (batch, heads, tokens, dim), with k "
            "and v alike, and a number of heads that those of q are a multiple of"
        )
    pairs = visible_pairs(q.shape[2] * size, size, order)[dist.get_rank(group)]
    return _RingAttention.apply(q, k, v, group, order, [count * seconds_per_pair for count in pairs])


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: dist.ProcessGroup | None, order: Order, seconds: list[float]
    ) -> Tensor:
        peers = TorchPeers(group)
        wide = torch.promote_types(q.dtype, torch.float32)
        heads = q.to(wide).unflatten(1, (k.shape[1], -1))
        out = torch.zeros_like(heads)
        log_sum = torch.full_like(heads[..., 0], -torch.inf)
        block = torch.stack([k, v])
        for step in range(peers.size):
            arriving, handle = _pass_on(peers, block, step)
            keys, values = block.to(wide)
            for mine, theirs, causal in _visible_chunks(peers, step, order, q.shape[2]):
                more = attend_block(heads[..., mine, :], keys[..., theirs, :], values[..., theirs, :], causal)
                out[..., mine, :], log_sum[..., mine] = merge(out[..., mine, :], log_sum[..., mine], *more)
            compute(seconds[step], "attention")
            peers.wait(handle)
            block = arriving
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.peers = peers
        ctx.order = order
        ctx.seconds = seconds
        return out.flatten(1, 2).to(q.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of a block's keys and values travel behind it, each rank adding its own, until they are home."""
        q, k, v, out, log_sum = ctx.saved_tensors
        peers = ctx.peers
        wide = out.dtype
        heads = q.to(wide).unflatten(1, (k.shape[1], -1))
        gradient = gradient.to(wide).unflatten(1, (k.shape[1], -1))
        inner = (gradient * out).sum(-1)
        of_q = torch.zeros_like(heads)
        block = torch.stack([k, v])
        own = coming = torch.zeros_like(block, dtype=wide)
        coming_handle: Any = []
        for step in range(peers.size):
            arriving, handle = _pass_on(peers, block, step)
            keys, values = block.to(wide)
            of_block = torch.zeros_like(own)
            for mine, theirs, causal in _visible_chunks(peers, step, ctx.order, q.shape[2]):
                of_mine, of_keys, of_values = block_gradients(
                    heads[..., mine, :],
                    keys[..., theirs, :],
                    values[..., theirs, :],
                    causal,
                    log_sum[..., mine],
                    gradient[..., mine, :],
                    inner[..., mine],
                )
                of_q[..., mine, :] += of_mine
                of_block[0, ..., theirs, :] += of_keys
                of_block[1, ..., theirs, :] += of_values
            compute(ctx.seconds[step] * BACKWARD_WORK, "attention backward")
            peers.wait(coming_handle)
            if step == 0:
                own = of_block  # stays here: what the others add to it begins its way at the next rank
            else:
                of_block += coming
                coming = torch.empty_like(of_block)
                coming_handle = peers.exchange(of_block, *_neighbours(peers, coming))
            peers.wait(handle)
            block = arriving
        peers.wait(coming_handle)
        of_k, of_v = (own + coming).to(k.dtype)
        return of_q.flatten(1, 2).to(q.dtype), of_k, of_v, None, None, None


def _pass_on(peers: TorchPeers, block: Tensor, step: int) -> tuple[Tensor, Any]:
    """Begin to send a block to the next rank and to receive the previous rank's block. In the last step, do nothing."""
    if step == peers.size - 1:
        return block, []
    arriving = torch.empty_like(block)
    return arriving, peers.exchange(block, *_neighbours(peers, arriving))


def _neighbours(peers: TorchPeers, into: Tensor) -> tuple[int, Tensor, int]:
    return (peers.rank + 1) % peers.size, into, (peers.rank - 1) % peers.size


def _visible_chunks(peers: TorchPeers, step: int, order: Order, tokens: int) -> Iterator[tuple[slice, slice, bool]]:
    """Rows of this rank's queries, rows of the keys that it has in this step, and whether they are the same chunk; for
    chunks of which the queries see something."""
    mine = chunks_of(peers.rank, peers.size, order)
    theirs = chunks_of((peers.rank - step) % peers.size, peers.size, order)
    length = tokens // len(mine)
    for i, of_queries in enumerate(mine):
        for j, of_keys in enumerate(theirs):
            if of_keys <= of_queries:
                rows = slice(i * length, (i + 1) * length), slice(j * length, (j + 1) * length)
                yield *rows, of_keys == of_queries
