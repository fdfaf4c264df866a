"""The reductions of a collective, and tensors as the flat buffers that its messages are cut from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["Reduction", "flat", "reduction", "require_rank", "scratch"]

_OPERATIONS = ("sum", "avg", "product", "max", "min")
_buffer = threading.local()


class Reduction:
    """An operation on tensors of one dtype, in which it also accumulates, as NCCL and gloo do.

    `combine(into, other)` is done once per value that a rank receives, and `finish(chunk, ranks)` once at the end.
    """

    def __init__(self, operation: str, dtype: torch.dtype) -> None:
        from threeloops.training.cluster.programs.tensors import REDUCTIONS

        if operation not in _OPERATIONS:
            raise ValueError(f"operation = {operation!r}: expected one of {', '.join(_OPERATIONS)}")
        if operation == "avg" and not (dtype.is_floating_point or dtype.is_complex):
            raise TypeError(f"avg of {dtype}: an average needs a floating-point dtype; use sum, and divide it yourself")
        self._average = operation == "avg"
        self.combine = REDUCTIONS[operation.upper()]

    def finish(self, chunk: torch.Tensor, ranks: int) -> None:
        if self._average:
            chunk.div_(ranks)


def reduction(operation: str | Reduction, tensor: torch.Tensor) -> Reduction:
    """The reduction of this name for this tensor; one that is already made is passed on."""
    return operation if isinstance(operation, Reduction) else Reduction(operation, tensor.dtype)


@contextmanager
def flat(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A context that gives the tensor's elements in one contiguous dimension. Values written there are in the tensor
    afterwards."""
    import torch

    with torch.no_grad():
        buffer = tensor.detach().contiguous().view(-1)
        yield buffer
        if not tensor.is_contiguous():
            tensor.detach().copy_(buffer.view(tensor.shape))


def scratch(like: torch.Tensor, elements: int) -> torch.Tensor:
    """Return memory for data that this thread receives, valid until its next call.

    On a CPU the memory is kept, because glibc returns blocks of 32 MiB and more to the system, and touching fresh pages
    takes longer than copying into them. On a GPU torch's allocator keeps it.
    """
    import torch

    if like.device.type != "cpu":
        return like.new_empty(elements)
    size = elements * like.element_size()
    if not hasattr(_buffer, "bytes") or _buffer.bytes.numel() < size:
        _buffer.bytes = torch.empty(size, dtype=torch.uint8)
    return _buffer.bytes[:size].view(like.dtype)


def require_rank(what: str, rank: int, ranks: int) -> None:
    if not 0 <= rank < ranks:
        raise ValueError(f"{what} = {rank}: expected a rank of the group, 0 to {ranks - 1}")
