"""Where the lanes of a load or store point: into which argument, and how they lie relative to each other.

Two tensors may be neighbours in memory, so that an access past the end of one looks like an access to the other. Under
the meter, byte 0 of each argument's storage therefore has a virtual address, `ordinal << 48`: a pointer keeps its
argument however far it strays, and sectors do not depend on the allocator. A kernel that gets a view may reach all of
the view's storage, as on a GPU.

A kernel repeats few access patterns at many addresses: a matmul reads every tile of A with the same one. The meter
keeps a pattern and a base address for each access, and works out sectors, runs and lines once per pattern.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

__all__ = [
    "ELSEWHERE", "Pattern", "Patterns", "SECTOR_BYTES", "Space", "Spaces", "WORD", "ordinal_of", "tensors",
    "unwrapped",
]  # fmt: skip

_SPACE_BITS = 48
_HALF_SPACE = 1 << (_SPACE_BITS - 1)
WORD = 1 << 64
ELSEWHERE = "memory that is no argument"
SECTOR_BYTES = 32
"""The smallest transfer of a GPU: from compute capability 6.0 on a warp is served in transactions of 32 bytes
(NVIDIA, CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory")."""
_REQUEST_LANES = 32
"""One warp: the lanes whose addresses the hardware coalesces into one request."""


@dataclass(eq=False)
class Space:
    """The virtual addresses of one argument: its storage from `start` to `end` (exclusive), its element 0 at `first`.

    Adding `shift` (mod 2⁶⁴) gives the real address. `storage`: ordinal of the storage; views of one storage share it.
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
        return self.ordinal << _SPACE_BITS


def ordinal_of(address: Any) -> Any:
    """The argument that an address (an int, or a uint64 array of them) belongs to; 0 for real addresses.

    Addresses a little before a space still belong to it.
    """
    return ((address + _HALF_SPACE) & (WORD - 1)) >> _SPACE_BITS


class Spaces:
    """The address spaces of one launch."""

    def __init__(self) -> None:
        self.by_ordinal: dict[int, Space] = {}
        self._of_argument: dict[int, tuple[Space, Any]] = {}
        """By id of the host tensor, which is kept alive so that no other takes its id."""
        self._storages: dict[int, int] = {}

    def add(self, name: str, original: Any, host: Any) -> Space:
        """Give argument `name` a space. `host`: the tensor in host memory that the interpreter made of `original`."""
        original, host = unwrapped(original), unwrapped(host)
        real, ordinal = host.untyped_storage().data_ptr(), len(self.by_ordinal) + 1
        # Kernels may depend on the alignment of the real address to 16 bytes, so it is preserved.
        start = (ordinal << _SPACE_BITS) + real % 16
        storage = self._storages.setdefault(original.untyped_storage()._cdata, len(self._storages))
        end = start + host.untyped_storage().nbytes()
        first = start + host.storage_offset() * host.element_size()
        space = Space(ordinal, name, storage, start, end, first, np.uint64((real - start) % WORD))
        self.by_ordinal[ordinal] = space
        self._of_argument[id(host)] = space, host
        return space

    def of(self, host: Any) -> Space | None:
        """The space of a tensor that the interpreter made; None unless it is an argument."""
        return self._of_argument.get(id(unwrapped(host)), (None,))[0]

    def elsewhere(self) -> Space:
        """The space of real addresses: pointers that a kernel loaded from memory and that point into no argument."""
        return self.by_ordinal.setdefault(0, Space(0, ELSEWHERE, -1, 0, _HALF_SPACE, 0, np.uint64(0)))


def unwrapped(tensor: Any) -> Any:
    """The tensor behind `triton.reinterpret`."""
    return getattr(tensor, "base", tensor)


def tensors(name: str, original: Any, host: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, original, host) of every tensor in an argument: itself, or those in a descriptor or tuple."""
    if isinstance(original, tuple):
        for place, (theirs, ours) in enumerate(zip(original, host, strict=True)):
            yield from tensors(f"{name}[{place}]", theirs, ours)
    elif hasattr(original, "block_shape"):
        yield name, original.base, host.base
    elif hasattr(original, "data_ptr"):
        yield name, original, host


@dataclass(eq=False)
class Pattern:
    """Byte offsets of an access's lanes, relative to its first active lane, in C order of the tile.

    `shape`: the tile's. `relative`: int64, one per lane, meaningless for masked lanes. `mask`: bool, one per lane, or
    None if all are active. `low`, `high`: the smallest and largest offset of an active lane. `lanes`: how many are
    active. Methods take the pattern's `base`: the byte of its first active lane.
    """

    index: int
    shape: tuple[int, ...]
    relative: np.ndarray
    mask: np.ndarray | None
    itemsize: int
    low: int
    high: int
    lanes: int
    _sectors: dict[int, tuple[int, int]] = field(default_factory=dict)

    def matches(self, shape: tuple[int, ...], relative: np.ndarray, mask: np.ndarray | None, itemsize: int) -> bool:
        if self.itemsize != itemsize or self.shape != shape or (mask is None) != (self.mask is None):
            return False
        if mask is not None and not (mask == self.mask).all():
            return False
        return bool((relative == self.relative).all())

    @property
    def active(self) -> np.ndarray:
        """Offsets of the active lanes, in lane order."""
        return self.relative if self.mask is None else self.relative[self.mask]

    @property
    def bytes(self) -> int:
        return self.lanes * self.itemsize

    @cached_property
    def granule(self) -> int:
        """The largest power of two that divides the item's size and all active offsets."""
        spread = int(np.bitwise_or.reduce(self.active)) | self.itemsize
        return spread & -spread

    @cached_property
    def runs(self) -> list[tuple[int, int]]:
        """The touched bytes as (start, end) pairs if there are few, at most one for every 8 lanes; else empty."""
        active = self.active
        breaks = np.flatnonzero(np.diff(active) != self.itemsize) + 1
        if 8 * (len(breaks) + 1) > max(self.lanes, 8):
            return []
        starts = active[np.concatenate(([0], breaks))]
        ends = active[np.concatenate((breaks - 1, [self.lanes - 1]))] + self.itemsize
        return list(zip(starts.tolist(), ends.tolist(), strict=True))

    def mark(self, units: np.ndarray, base: int, value: object = True, unit: int = 1) -> None:
        """Set the entries of `units`, one for every `unit` bytes, that this pattern touches."""
        for start, end in self.runs:
            units[(base + start) // unit : (base + end) // unit] = value
        if not self.runs:
            units[self.places(base, unit)] = value

    def look(self, units: np.ndarray, base: int, unit: int = 1) -> np.ndarray:
        """The entries of `units` that this pattern touches, in no particular order."""
        if self.runs:
            return np.concatenate([units[(base + start) // unit : (base + end) // unit] for start, end in self.runs])
        return units[self.places(base, unit)]

    def places(self, base: int, unit: int = 1) -> np.ndarray:
        """The numbers of the `unit`-byte units that this pattern touches."""
        first = (self.active + base) // unit
        return np.concatenate([first + part for part in range(self.itemsize // unit)])

    def sectors(self, base: int) -> tuple[int, int]:
        """(sectors, requests) of this pattern with its first lane at byte `base`.

        A request is REQUEST_LANES consecutive lanes with at least one active; it costs the distinct sectors that its
        active lanes touch. Lanes are counted along the tile's contiguous axis first, where there is one, because that
        is how Triton's coalescing pass assigns elements to threads, whether a tile is read by rows or by columns.
        """
        shift = base % SECTOR_BYTES
        if shift not in self._sectors:
            self._sectors[shift] = self._count_sectors(shift)
        return self._sectors[shift]

    def _count_sectors(self, shift: int) -> tuple[int, int]:
        first = self._by_request(shift)
        if (shift | self.granule) % self.itemsize == 0 and self.itemsize <= SECTOR_BYTES:
            touched = first
        else:
            # Unaligned items may straddle two sectors.
            touched = np.concatenate((first, self._by_request(shift + self.itemsize - 1)), axis=1)
        ordered = np.sort(touched, axis=1)
        distinct = len(ordered) + int(np.count_nonzero(ordered[:, 1:] != ordered[:, :-1]))
        return distinct, len(ordered)

    def by_thread(self, lanes: np.ndarray) -> np.ndarray:
        """Reorder values, one per lane in C order of the tile, to the order of threads: contiguous axis fastest."""
        axis = self.contiguous_axis if len(self.shape) > 1 else 0
        if axis == len(self.shape) - 1:
            return lanes
        return np.moveaxis(lanes.reshape(self.shape), axis, -1).reshape(-1)

    @cached_property
    def contiguous_axis(self) -> int:
        """The axis along which most neighbours lie one item apart; of equal ones the last."""
        offsets = self.relative.reshape(self.shape)

        def neighbours(axis: int) -> float:
            steps = np.diff(offsets, axis=axis)
            return float(np.mean(steps == self.itemsize)) if steps.size else 0.0

        return max(range(len(self.shape)), key=lambda axis: (neighbours(axis), axis))

    def _by_request(self, shift: int) -> np.ndarray:
        """Sector of each lane, one row per request with an active lane; inactive lanes repeat an active one."""
        sector = (self.by_thread(self.relative) + shift) // SECTOR_BYTES
        padding = -len(sector) % _REQUEST_LANES
        if self.mask is None and not padding:
            return sector.reshape(-1, _REQUEST_LANES)
        mask = np.ones(len(sector), bool) if self.mask is None else self.by_thread(self.mask)
        rows = np.pad(sector, (0, padding)).reshape(-1, _REQUEST_LANES)
        active = np.pad(mask, (0, padding)).reshape(-1, _REQUEST_LANES)
        rows, active = rows[active.any(axis=1)], active[active.any(axis=1)]
        stand_in = rows[np.arange(len(rows)), active.argmax(axis=1)]
        return np.where(active, rows, stand_in[:, None])


class Patterns:
    """The patterns of one launch, without duplicates."""

    def __init__(self) -> None:
        self.all: list[Pattern] = []
        self._latest: dict[object, Pattern] = {}
        self._known: dict[object, list[Pattern]] = {}

    def find(self, addresses: np.ndarray, mask: np.ndarray | None, itemsize: int, site: object) -> tuple[Pattern, int]:
        """The pattern of these addresses (uint64, any shape; mask likewise) and the address of the first active lane.

        `site` identifies the source line, which mostly repeats its latest pattern.
        """
        if mask is not None:
            mask = None if mask.all() else mask.reshape(-1)
        shape = addresses.shape or (1,)
        # A masked lane's address may be anything.
        base = int(addresses.item(0 if mask is None else int(mask.argmax())))
        relative = np.subtract(addresses, np.uint64(base), order="C").view(np.int64).reshape(-1)
        latest = self._latest.get(site)
        if latest is None or not latest.matches(shape, relative, mask, itemsize):
            latest = self._look_up(shape, relative, mask, itemsize)
            self._latest[site] = latest
        return latest, base

    def _look_up(self, shape: tuple[int, ...], relative: np.ndarray, mask: np.ndarray | None, itemsize: int) -> Pattern:
        lanes = len(relative) if mask is None else int(np.count_nonzero(mask))
        key = (len(relative), lanes, itemsize, int(relative[-1]), int(relative.sum()))
        alike = self._known.setdefault(key, [])
        for pattern in alike:
            if pattern.matches(shape, relative, mask, itemsize):
                return pattern
        active = relative if mask is None else relative[mask]
        low, high = (int(active.min()), int(active.max())) if lanes else (0, 0)
        # The mask may be the kernel's own array, which can change; the offsets are ours.
        mask = None if mask is None else mask.copy()
        pattern = Pattern(len(self.all), shape, relative, mask, itemsize, low, high, lanes)
        self.all.append(pattern)
        alike.append(pattern)
        return pattern
