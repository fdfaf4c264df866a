"""The watch over memory that nobody has written.

A TorchDispatchMode sees every torch operation while metering, except during a launch, when the interpreter itself
allocates. Memory from `empty`, `empty_like`, `empty_strided`, `empty_permuted`, `new_empty` or `new_empty_strided` is
watched: one flag per byte says "not written yet". Torch operations clear the flags of the tensors that their schema
says they write, and kernels clear the flags of the bytes that they store. Watched memory is also filled with a poison
byte (NaN in every floating-point format). A read is reported only where the flags are up *and* the poison is still
there, so that writes which torch does not announce (through numpy, ctypes, DLPack) raise no false alarm.

The watch does not see reads by torch operations. It does not cover storages of bool, storages of more than LARGEST
bytes, storages that existed before the meter, or memory gained by `resize_`. And it cannot tell an unannounced write of
the poison byte from no write.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from threeloops.inner.meter.accesses import Pattern

__all__ = ["NAN_BYTE", "Unwritten", "Watch"]

_LARGEST = 1 << 28
_EMPTY = {
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
}
NAN_BYTE = 0xFF
_OTHER_BYTE = 0xA5


class Unwritten:
    """A watched storage. `flags` has one bool per byte, True for bytes that have not been written."""

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        floating = tensor.dtype.is_floating_point or tensor.dtype.is_complex
        self.poison = NAN_BYTE if floating else _OTHER_BYTE
        storage.fill_(self.poison)
        self.flags = np.ones(storage.nbytes(), bool)
        # While this reference is held, no other storage gets the same identity.
        self.alive = StorageWeakRef(storage)

    def write(self, pattern: Pattern, base: int) -> None:
        pattern.mark(self.flags, base, False)

    def read(self, pattern: Pattern, base: int, value: np.ndarray) -> np.ndarray:
        """Return the offsets of the bytes that this access reads although nothing wrote them. `value` is the value that
        it read."""
        if not pattern.look(self.flags, base).any():
            return np.empty(0, np.int64)
        active = (pattern.active + base)[:, None] + np.arange(pattern.itemsize)
        raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8).reshape(-1, pattern.itemsize)
        raw = raw if pattern.mask is None else raw[pattern.mask]
        return active[self.flags[active] & (raw == self.poison)]

    def write_tensor(self, tensor: torch.Tensor) -> None:
        """Clear the flags of a tensor's own elements."""
        item = tensor.element_size()
        shape = (*tensor.shape, item)
        strides = (*(stride * item for stride in tensor.stride()), 1)
        start = tensor.storage_offset() * item
        if tensor.numel():
            np.lib.stride_tricks.as_strided(self.flags[start:], shape, strides)[...] = False


@cache
def _effect_of(operation: Any) -> tuple[bool, list[tuple[int, str]]]:
    """Read from an operation's schema whether it returns new memory, and (position, name) of the arguments it
    writes."""
    schema = getattr(operation, "_schema", None)
    if schema is None:
        # A higher-order operator: the operations that it runs are dispatched one by one.
        return False, []
    written = [
        (place, argument.name)
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    # `torch.empty(…, out=x)` returns x.
    return schema.name in _EMPTY and not written, written


class Watch(TorchDispatchMode):
    """Sees torch's allocations and writes, unless `paused`, as during launches."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False
        self._exited = False
        self.watched: dict[int, Unwritten] = {}

    def pause(self) -> None:
        """Look away. If no other mode lies above, torch dispatches no operation to Python until `resume`."""
        self.paused = True
        if _get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)
            self._exited = True

    def resume(self) -> None:
        """Look again. Call it in the thread and among the modes in which `pause` was called."""
        if self._exited:
            self._exited = False
            self.__enter__()
        self.paused = False

    def of(self, storage: torch.UntypedStorage) -> Unwritten | None:
        """Return the flags of a storage, if it is watched and holds bytes that nobody has written."""
        unwritten = self.watched.get(storage._cdata)
        if unwritten is None:
            return None
        # Flags are only ever cleared, so a storage without any, or that was resized, need not be looked at again.
        if unwritten.flags.any() and len(unwritten.flags) == storage.nbytes():
            return unwritten
        del self.watched[storage._cdata]
        return None

    def flags(self) -> dict[int, np.ndarray]:
        """Return a copy of all flags, for `put_back`."""
        return {key: unwritten.flags.copy() for key, unwritten in self.watched.items()}

    def put_back(self, flags: dict[int, np.ndarray]) -> None:
        """Take up these flags again, because the memory is restored."""
        for key, storage_flags in flags.items():
            if key in self.watched:
                self.watched[key].flags = storage_flags

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.paused:
            return result
        allocates, written = _effect_of(func)
        if allocates:
            self._watch(result)
        elif self.watched:
            self._wrote([args[place] if place < len(args) else kwargs.get(name) for place, name in written])
        return result

    def _watch(self, tensor: torch.Tensor) -> None:
        plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and tensor.device.type != "meta"
        if not plain or tensor.dtype == torch.bool or not 0 < tensor.untyped_storage().nbytes() <= _LARGEST:
            return
        self.watched = {key: unwritten for key, unwritten in self.watched.items() if not unwritten.alive.expired()}
        self.watched[tensor.untyped_storage()._cdata] = Unwritten(tensor)

    def _wrote(self, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            for member in value:
                self._wrote(member)
        elif isinstance(value, torch.Tensor) and value.layout == torch.strided:
            unwritten = self.of(value.untyped_storage())
            if unwritten is not None:
                unwritten.write_tensor(value)
