"""Tensors on the grader's side whose backward continues in the student's autograd graph. This module imports torch, so
only labs with tensors import it."""

from collections.abc import Sequence
from typing import Any

import torch

from threeloops_grader.transport.link import WallError
from threeloops_grader.wall.messages import Asks, Message, Tracked, plain, walk

__all__ = ["attached"]


def attached(
    connection: Asks, value: Any, tape: int | None, leaf_grads: Sequence[Any], leaves: Sequence[torch.Tensor]
) -> Any:
    """Return a value with plain tensors in place of the tracked ones. Leaves of the student's autograd graph carry
    their gradients. For all other tensors, backward runs through the student's call to `leaves`, the arguments of that
    call."""
    grads = iter(leaf_grads)
    value = walk(value, lambda t: t if t.index is not None else _with_grad(t.tensor, next(grads, None)))
    tracked: list[Tracked] = []
    walk(value, tracked.append)
    if not tracked or tape is None:
        return plain(value)
    results = iter(_Backward.apply(connection, tape, tracked, *(leaves or [torch.zeros((), requires_grad=True)])))
    return walk(value, lambda _: next(results))


class _Backward(torch.autograd.Function):
    """Makes results of a student's call differentiable here: backward is a request to the student's side."""

    @staticmethod
    def forward(ctx: Any, connection: Asks, tape: int, tracked: list[Tracked], *leaves: torch.Tensor) -> Any:
        ctx.connection = connection
        ctx.tape = tape
        ctx.leaves = len(leaves)
        ctx.indices = [t.index for t in tracked]
        return tuple(t.tensor.clone() for t in tracked)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        by_index: list[Any] = [None] * (max(ctx.indices) + 1)
        for index, grad in zip(ctx.indices, grads, strict=True):
            by_index[index] = grad
        message = ctx.connection.pack(by_index)
        head = {"op": "backward", "tape": ctx.tape, "leaves": ctx.leaves, **message.tree}
        answer = ctx.connection.request(head, Message(buffers=message.buffers))
        if type(answer) is not list or len(answer) != ctx.leaves:
            raise WallError("a malformed gradient came back")
        return (None, None, None, *[g if isinstance(g, torch.Tensor) else None for g in answer])


def _with_grad(tensor: torch.Tensor, grad: Any) -> torch.Tensor:
    tensor.requires_grad_(True)
    if isinstance(grad, torch.Tensor) and grad.shape == tensor.shape and grad.dtype == tensor.dtype:
        tensor.grad = grad
    return tensor
