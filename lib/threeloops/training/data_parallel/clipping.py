"""The norm of all gradients, if each rank holds all of them (DDP) or a part (FSDP, tensor parallelism).

torch's `clip_grad_norm_` computes the norm of the tensors that it is given. For replicated gradients that are already
averaged, this is the norm of the model's gradient on every rank, and no communication is needed. For plain tensors that
hold a shard it is the norm of only that shard, and each rank would scale by another factor. (torch itself reduces norms
of DTensors.)
"""

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["clip_grad_norm", "total_norm"]


def total_norm(
    parameters: Iterable[Tensor],
    group: dist.ProcessGroup | None = None,
    norm_type: float = 2.0,
    *,
    sharded: bool = False,
) -> Tensor:
    """Return the norm of all gradients as one vector, in float32, or wider if one of them is. float64 if `sharded`.

    Args:
        sharded: whether the ranks of `group` (by default all) hold different parts of the gradients. This takes one
            all-reduce of one number, which every rank must call, even if its shard is empty. Otherwise nothing is
            communicated.
        norm_type: p of the p-norm, above 0. `math.inf` for the largest absolute value.

    The norms n of a replicated part and m of a sharded part combine to (nᵖ + mᵖ)^(1/p).
    `torch.nn.utils.clip_grads_with_norm_` then scales both with it.
    """
    if not norm_type > 0:
        raise ValueError(f"norm_type = {norm_type}: expected a number above 0, or inf")
    parameters = list(parameters)
    device = parameters[0].device if parameters else None
    gradients = [p.grad for p in parameters if p.grad is not None and p.grad.numel()]  # nothing has no largest
    wide = torch.float64 if any(g.dtype == torch.float64 for g in gradients) else torch.float32
    norms = [torch.linalg.vector_norm(g, norm_type, dtype=wide) for g in gradients]
    norm = (
        torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else torch.zeros((), dtype=wide, device=device)
    )
    if not sharded:
        return norm
    norm = norm.double()  # one dtype on all ranks, whatever they hold
    if math.isinf(norm_type):
        dist.all_reduce(norm, dist.ReduceOp.MAX, group=group)
        return norm
    total = norm**norm_type
    dist.all_reduce(total, group=group)
    return total ** (1 / norm_type)


def clip_grad_norm(
    parameters: Iterable[Tensor],
    max_norm: float,
    group: dist.ProcessGroup | None = None,
    norm_type: float = 2.0,
    *,
    sharded: bool = False,
) -> Tensor:
    """Scale the gradients, in place, so that their norm is at most `max_norm`; returns the norm before.

    Arguments as of `total_norm`. All ranks scale by the same factor, max_norm / (norm + 1e-6), as torch does.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm = {max_norm}: expected a number above 0; inf measures the norm without clipping")
    parameters = list(parameters)
    norm = total_norm(parameters, group, norm_type, sharded=sharded)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
