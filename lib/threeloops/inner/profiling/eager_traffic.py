"""The traffic of eager PyTorch, in which every operator reads its inputs from memory and writes its outputs back.

    with eager_traffic() as operations:
        dropout(gelu(x + bias))
    print(sum(operation.bytes for operation in operations))

This counts the compulsory traffic of each operator: each input tensor once, each output once; views move nothing. A
tensor that is broadcast counts with its own size. A tensor from which elements are picked (an embedding's table, the
log-probabilities of a loss) counts with the size of the picked elements. A tensor that is only overwritten does not
count as an input. Scratch buffers and second passes inside an operator are not seen: the true number is at least this
one.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Operation", "eager_traffic"]

_ALLOCATIONS = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")
_FILLS = ("copy_", "fill_", "zero_", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like")
"""Operators that do not look at the values of their first argument."""
_PICKED_FROM = {
    **dict.fromkeys(("embedding", "gather", "index", "index_select", "nll_loss_forward"), 0),
    "nll_loss_backward": 1,
}
"""The argument of which an operator reads only single elements; the backward kernel of the loss reads none of it."""


@dataclass(frozen=True)
class Operation:
    """One operator call, in the order of execution: its name ("aten.gelu"), bytes read and bytes written."""

    name: str
    read: int
    written: int

    @property
    def bytes(self) -> int:
        return self.read + self.written


class _Counter(TorchDispatchMode):
    def __init__(self, operations: list[Operation]) -> None:
        super().__init__()
        self.operations = operations

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        inputs = _tensors((args, kwargs))
        outputs = _tensors(result)
        name = function.overloadpacket.__name__
        shared = {tensor.untyped_storage()._cdata for tensor in inputs}
        is_view = bool(outputs) and all(tensor.untyped_storage()._cdata in shared for tensor in outputs)
        if name in _ALLOCATIONS or (is_view and not function._schema.is_mutable):
            return result
        read = sum(map(_size, {id(tensor): tensor for tensor in inputs}.values())) - _unread(name, args, outputs)
        self.operations.append(Operation(f"aten.{name}", read, sum(map(_size, outputs))))
        return result


@contextmanager
def eager_traffic() -> Iterator[list[Operation]]:
    """Collect every operator that moves data inside the block, autograd's included."""
    operations: list[Operation] = []
    with _Counter(operations):
        yield operations


def _unread(name: str, args: Sequence[Any], outputs: list[torch.Tensor]) -> int:
    """Return the bytes of the arguments that the operator does not read."""
    if name in _FILLS:
        return _size(args[0])
    if name not in _PICKED_FROM:
        return 0
    source = args[_PICKED_FROM[name]]
    picked = {"nll_loss_forward": args[1], "nll_loss_backward": None}.get(name, outputs[0])
    elements = 0 if picked is None else picked.numel()
    return max(0, _size(source) - elements * source.element_size())


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _size(tensor: torch.Tensor) -> int:
    """Return the bytes of the different elements: a dimension that is broadcast has stride 0 and is stored once."""
    stored = (min(size, 1) if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return prod(stored) * tensor.element_size()
