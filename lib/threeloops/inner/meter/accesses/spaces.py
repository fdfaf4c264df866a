"""Find the argument that a load or store points into.

Two tensors may be neighbours in memory, so that an access past the end of one looks like an access to the other. Under
the meter, byte 0 of each argument's storage therefore has a virtual address, `ordinal << 48`: a pointer keeps its
argument however far it strays, and sectors do not depend on the allocator. A kernel that gets a view may reach all of
the view's storage, as on a GPU; `views` says which of these bytes belong to the view.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from threeloops.inner.meter.accesses.patterns import SPACE_BITS, Pattern
from threeloops.inner.meter.accesses.views import View

__all__ = ["ELSEWHERE", "Space", "Spaces", "WORD", "ordinal_of", "tensors", "unwrapped"]

_HALF_SPACE = 1 << (SPACE_BITS - 1)
WORD = 1 << 64
ELSEWHERE = "memory that is no argument"


@dataclass(eq=False)
class Space:
    """The virtual addresses of one argument: its storage from `start` to `end` (exclusive), its element 0 at `first`.

    Adding `shift` (mod 2⁶⁴) gives the real address. `storage` is the ordinal of the storage, which views of one storage
    share. `tensor` is the argument in host memory, or None for memory that is not an argument.
    """

    ordinal: int
    name: str
    storage: int
    start: int
    end: int
    first: int
    shift: np.uint64
    tensor: Any = None

    @property
    def zero(self) -> int:
        return self.ordinal << SPACE_BITS

    @cached_property
    def view(self) -> View:
        return View(self.tensor)

    def strays(self, pattern: Pattern, base: int) -> np.ndarray:
        """Return the elements outside the view that an access touches, one per lane at fault, counted from the access's
        pointer."""
        start = base - (self.start - self.zero)
        fits = self.view.low <= start + pattern.low and start + pattern.high + pattern.itemsize <= self.view.high
        if fits and not self.view.skips:
            return np.empty(0, np.int64)
        places = pattern.active + start
        return (places[self.view.outside(places, pattern.itemsize)] - self.view.low) // self.view.item


def ordinal_of(address: Any) -> Any:
    """Return the argument that an address (an int, or a uint64 array of them) belongs to, or 0 for real addresses.

    Addresses a little before a space still belong to it.
    """
    return ((address + _HALF_SPACE) & (WORD - 1)) >> SPACE_BITS


class Spaces:
    """The address spaces of one launch."""

    def __init__(self) -> None:
        self.by_ordinal: dict[int, Space] = {}
        self._of_argument: dict[int, Space] = {}
        """Spaces by the id of the host tensor. The space keeps its tensor alive, so that no other takes its id."""
        self._storages: dict[int, int] = {}

    def add(self, name: str, original: Any, host: Any) -> Space:
        """Give argument `name` a space. `host`: the tensor in host memory that the interpreter made of `original`."""
        original = unwrapped(original)
        host = unwrapped(host)
        real = host.untyped_storage().data_ptr()
        ordinal = len(self.by_ordinal) + 1
        # Kernels may depend on the alignment of the real address to 16 bytes, so it is preserved.
        start = (ordinal << SPACE_BITS) + real % 16
        storage = self._storages.setdefault(original.untyped_storage()._cdata, len(self._storages))
        end = start + host.untyped_storage().nbytes()
        first = start + host.storage_offset() * host.element_size()
        space = Space(ordinal, name, storage, start, end, first, np.uint64((real - start) % WORD), host)
        self.by_ordinal[ordinal] = space
        self._of_argument[id(host)] = space
        return space

    def of(self, host: Any) -> Space | None:
        """Return the space of a tensor that the interpreter made, or None unless it is an argument."""
        return self._of_argument.get(id(unwrapped(host)))

    def elsewhere(self) -> Space:
        """Return the space of real addresses: pointers that a kernel loaded from memory and that point into no
        argument."""
        return self.by_ordinal.setdefault(0, Space(0, ELSEWHERE, -1, 0, _HALF_SPACE, 0, np.uint64(0)))


def unwrapped(tensor: Any) -> Any:
    """Return the tensor behind `triton.reinterpret`."""
    return getattr(tensor, "base", tensor)


def tensors(name: str, original: Any, host: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, original, host) of every tensor in an argument: itself, or those in a descriptor or tuple."""
    if isinstance(original, tuple):
        for place, (theirs, ours) in enumerate(zip(original, host, strict=True)):
            yield from tensors(f"{name}[{place}]", theirs, ours)
    elif hasattr(original, "block_shape"):
        yield name, original.base, host.base
    elif hasattr(original, "data_ptr"):
        yield name, original, host
