"""Tensors that came back with a place in the student's autograd graph, and what an in-place call left behind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from grader.transport.link import WallError
from grader.wall.messages import Asks, Message

__all__ = ["Backward", "Tracked", "plain", "restore", "walk", "with_grad"]


@dataclass
class Tracked:
    """A tensor that came back with a place in the student's autograd graph: a result's index, or None for a leaf."""

    tensor: torch.Tensor
    index: int | None


class Backward(torch.autograd.Function):
    """Makes results of a student's call differentiable here: backward is a request to the student's side."""

    @staticmethod
    def forward(ctx: Any, connection: Asks, tape: int, tracked: list[Tracked], *leaves: torch.Tensor) -> Any:
        ctx.connection, ctx.tape, ctx.leaves = connection, tape, len(leaves)
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


def walk(value: Any, visit: Callable[[Tracked], Any]) -> Any:
    """Replace the tracked tensors in plain containers."""
    kind = type(value)
    if kind is Tracked:
        return visit(value)
    if kind in (list, tuple):
        return kind(walk(v, visit) for v in value)
    if kind is dict:
        return {k: walk(v, visit) for k, v in value.items()}
    return value


def plain(value: Any) -> Any:
    return walk(value, lambda t: t.tensor)


def with_grad(tensor: torch.Tensor, grad: Any) -> torch.Tensor:
    tensor.requires_grad_(True)
    if isinstance(grad, torch.Tensor) and grad.shape == tensor.shape and grad.dtype == tensor.dtype:
        tensor.grad = grad
    return tensor


def restore(original: Any, changed: Any) -> None:
    """Copy an in-place change back into the test's own object."""
    if isinstance(original, torch.nn.Module):
        original.load_state_dict(changed["state"])
        for parameter, grad in zip(original.parameters(), changed["grads"], strict=True):
            parameter.grad = None if grad is None else grad.reshape(parameter.shape).to(parameter.dtype)
    elif isinstance(original, torch.Tensor):
        if changed.shape != original.shape or changed.dtype != original.dtype:
            raise ValueError("an in-place argument changed its shape or dtype")
        with torch.no_grad():
            original.copy_(changed)
    elif isinstance(original, np.ndarray):
        original[...] = changed
    elif isinstance(original, list):
        original[:] = changed
    elif isinstance(original, dict):
        original.clear()
        original.update(changed)
    else:
        raise TypeError(f"a {type(original).__name__} cannot be changed in place across the wall")
