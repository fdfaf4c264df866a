"""The storages that a launcher can reach while it is recorded, and the steps so far.

A storage belongs to an input, or was allocated in this call, or comes from some other torch operation. In the last case
`made_by` names that operation, and neither a kernel nor a result may use the storage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from threeloops.inner.replay.recordings.steps import (
    BYTES,
    Allocate,
    Copy,
    Count,
    Fill,
    RecordingRefused,
    Step,
    StridedView,
    Sum,
    dtype_of,
)

__all__ = ["FOREIGN", "Ledger", "identity", "tensors"]

FOREIGN = "something outside of this call"


@dataclass
class _Storage:
    """`ordinal` in the recording, -1 for one that is not in it."""

    ordinal: int
    made_by: str = ""


class Ledger:
    """The steps and storages of one recording. A refusal stands, even if the launcher catches it and continues."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        self.steps: list[Step] = []
        self.refusal = ""
        self._storages: dict[int, _Storage] = {}
        self._alive: list[torch.Tensor] = []
        self._count = 0
        for tensor in inputs:
            if identity(tensor) not in self._storages:
                self._number(tensor)
        self._inputs = self._count

    def refuse(self, why: str) -> NoReturn:
        self.refusal = self.refusal or why
        raise RecordingRefused(self.refusal)

    def is_new(self, result: Any) -> bool:
        """Return whether an operation returned a tensor of its own that a recording can hold."""
        plain = isinstance(result, torch.Tensor) and result.layout is torch.strided
        return plain and identity(result) not in self._storages and dtype_of(result) in BYTES

    def is_input(self, tensor: torch.Tensor) -> bool:
        storage = self._storages.get(identity(tensor))
        return storage is not None and 0 <= storage.ordinal < self._inputs

    def allocate(self, tensor: torch.Tensor) -> None:
        self._number(tensor)
        self.steps.append(Allocate(dtype_of(tensor), tensor.untyped_storage().nbytes() // tensor.element_size()))

    def fill(self, tensor: torch.Tensor, value: Any, by: str) -> None:
        storage = self._storages.get(identity(tensor))
        if storage is None or storage.made_by:
            return
        if isinstance(value, torch.Tensor):
            self.copy(tensor, value)
        elif type(value) in (int, float, bool):
            self.steps.append(Fill(self._view(tensor), value))
        else:
            storage.made_by = by

    def copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Note `to.copy_(source)`. torch turns `x[0] = 1.5` into a copy of a single number from outside the call."""
        storage = self._storages.get(identity(to))
        maker = self.maker(source)
        if storage is None or storage.made_by:
            return
        if maker == FOREIGN and source.ndim == 0:
            self.fill(to, torch.ops.aten._local_scalar_dense.default(source), FOREIGN)
        elif maker:
            storage.made_by = maker
        else:
            self.steps.append(Copy(self._view(to), self._view(source.expand(to.shape))))

    def new_copy(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Make a tensor of the launcher's own with the values of another."""
        if maker := self.maker(source):
            self.taint(to, maker)
            return
        self.allocate(to)
        self.steps.append(Copy(self._view(to), self._view(source)))

    def sum(self, to: torch.Tensor, source: torch.Tensor, dimensions: Sequence[int] | None, keepdim: bool) -> None:
        if maker := self.maker(source):
            self.taint(to, "torch.sum" if maker == FOREIGN else maker)
            return
        chosen = dimensions or range(source.ndim)
        self.allocate(to)
        ordered = tuple(sorted(d % source.ndim for d in chosen)) if source.ndim else ()
        self.steps.append(Sum(self._view(to), self._view(source), ordered, keepdim))

    def count(self, to: torch.Tensor, start: Any, step: Any) -> None:
        self.allocate(to)
        self.steps.append(Count(self._view(to), 0 if start is None else start, 1 if step is None else step))

    def maker(self, tensor: torch.Tensor) -> str:
        """Return what made a tensor that may not be used, or "" for one that may be."""
        storage = self._storages.get(identity(tensor))
        return FOREIGN if storage is None else storage.made_by

    def taint(self, tensor: torch.Tensor, made_by: str) -> None:
        """Note that torch wrote values into a tensor's storage that a kernel should have written."""
        storage = self._storages.get(identity(tensor))
        if storage is None:
            self._alive.append(tensor)
            self._storages[identity(tensor)] = _Storage(-1, made_by)
        else:
            storage.made_by = storage.made_by or made_by

    def knows(self, tensor: torch.Tensor) -> bool:
        return identity(tensor) in self._storages

    def view(self, tensor: torch.Tensor, verb: str) -> StridedView:
        """Return the view of a tensor that the launcher returns or gives to a kernel. Refuses one that it may not
        use."""
        maker = self.maker(tensor)
        if maker == FOREIGN:
            self.refuse(
                f"{verb} a tensor that it neither was given nor allocated in this call: nothing is kept from one call "
                "to the next, and torch.empty, zeros, ones and full make new ones"
            )
        if maker:
            self.refuse(
                f"{verb} a tensor that torch made, by {maker}: the kernel has to do that; beside kernels, a launcher "
                "may allocate, fill, copy, view, and sum what a kernel wrote"
            )
        return self._view(tensor)

    def _number(self, tensor: torch.Tensor) -> None:
        self._alive.append(tensor)  # a storage's identity is its own only while it lives
        self._storages[identity(tensor)] = _Storage(self._count)
        self._count += 1

    def _view(self, tensor: torch.Tensor) -> StridedView:
        return StridedView.of(tensor, self._storages[identity(tensor)].ordinal)


def identity(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors in nested lists, tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [tensor for member in value for tensor in tensors(member)] if isinstance(value, list | tuple) else []
