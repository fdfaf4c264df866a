"""A virtual address space for each argument of a launch, so that every pointer says whose it is.

Two tensors may lie side by side in memory: an access past the end of one then looks like an access to the other.
Under the meter, byte 0 of an argument's storage has the address `ordinal << 48`; a pointer keeps its argument however
far it strays, bounds are exact, and sectors do not depend on where the allocator happened to put things. Bounds are
those of the storage: a kernel that gets a view may reach all of what it is a view of, as on a GPU.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

SPACE_BITS = 48
WORD = 1 << 64
ELSEWHERE = "memory that is no argument"


@dataclass(eq=False)
class Space:
    """One argument's addresses: byte 0 of its storage at `start`, the first byte past it at `end`, its own element 0 at
    `first`.

    `shift` (mod 2⁶⁴) leads from here to the real address. `storage` is the ordinal of the storage in the launch:
    arguments that view one storage share it.
    """

    ordinal: int
    name: str
    storage: int
    start: int
    end: int
    first: int
    shift: np.uint64

    @property
    def zero(self) -> int:
        return self.ordinal << SPACE_BITS


def ordinal_of(address: int) -> int:
    """Whose address this is; 0: a real one. Addresses a little before a space still belong to it."""
    return ((address + (1 << (SPACE_BITS - 1))) % WORD) >> SPACE_BITS


def ordinals_of(addresses: np.ndarray) -> np.ndarray:
    return (addresses + np.uint64(1 << (SPACE_BITS - 1))) >> np.uint64(SPACE_BITS)


class Spaces:
    """The address spaces of one launch."""

    def __init__(self) -> None:
        self.by_ordinal: dict[int, Space] = {}
        self._of_argument: dict[int, Space] = {}
        self._storages: dict[int, int] = {}
        self._keep: list[Any] = []

    def add(self, name: str, original: Any, host: Any) -> Space:
        """Give argument `name` a space. `host` is the tensor in host memory that the interpreter made of `original`."""
        original, host = unwrapped(original), unwrapped(host)
        real, ordinal = host.untyped_storage().data_ptr(), len(self.by_ordinal) + 1
        # What a kernel can see of the real address, its alignment to 16 bytes, stays as it is.
        start = (ordinal << SPACE_BITS) + real % 16
        storage = self._storages.setdefault(original.untyped_storage()._cdata, len(self._storages))
        end = start + host.untyped_storage().nbytes()
        first = start + host.storage_offset() * host.element_size()
        space = Space(ordinal, name, storage, start, end, first, np.uint64((real - start) % WORD))
        self.by_ordinal[ordinal] = self._of_argument[id(host)] = space
        # An id is this tensor's for as long as it lives.
        self._keep.append(host)
        return space

    def of(self, host: Any) -> Space | None:
        """The space of a tensor that the interpreter made; None if it is no argument's."""
        return self._of_argument.get(id(unwrapped(host)))

    def elsewhere(self) -> Space:
        """Where pointers lead that a kernel loaded from memory and that point into no argument: real addresses."""
        if 0 not in self.by_ordinal:
            half = 1 << (SPACE_BITS - 1)
            self.by_ordinal[0] = Space(0, ELSEWHERE, -1, 0, half, 0, np.uint64(0))
        return self.by_ordinal[0]


def unwrapped(tensor: Any) -> Any:
    """The tensor itself of one that `triton.reinterpret` gave another type."""
    return getattr(tensor, "base", tensor)


def tensors(name: str, original: Any, host: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, original, host) of every tensor in an argument: itself, a descriptor's, a tuple's."""
    if isinstance(original, tuple):
        for place, (theirs, ours) in enumerate(zip(original, host, strict=True)):
            yield from tensors(f"{name}[{place}]", theirs, ours)
    elif hasattr(original, "block_shape"):
        yield name, original.base, host.base
    elif hasattr(original, "data_ptr"):
        yield name, original, host
