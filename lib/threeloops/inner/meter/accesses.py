"""A virtual address space for each argument of a launch, so that every pointer says whose it is.

Two tensors may lie side by side in memory: an access past the end of one then looks like an access to the other.
Under the meter, byte 0 of an argument's storage has the address `ordinal << 48`; a pointer keeps its argument however
far it strays, bounds are exact, and sectors do not depend on where the allocator happened to put things. Bounds are
those of the storage: a kernel that gets a view may reach all of what it is a view of, as on a GPU.

Access patterns: where the lanes of one load or store lie relative to each other.

A kernel repeats few patterns at many addresses: a matmul reads every tile of A with the same one. The meter therefore
keeps, for each access, a pattern and a base address, and works out sectors, runs and lines once a pattern.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
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


SECTOR_BYTES = 32
"""What a GPU moves at the least: from compute capability 6.0 on a warp is served in transactions of 32 bytes
(NVIDIA, CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory")."""
REQUEST_LANES = 32
"""One warp's worth: the lanes whose addresses the hardware coalesces into one request."""


@dataclass(eq=False)
class Pattern:
    """Byte offsets of an access's lanes, relative to its first active lane, in C order of the tile.

    shape: the tile's. relative: int64, one a lane. mask: bool, one a lane; None: all are active. `low` and `high`:
    the smallest and largest offset of an active lane; `lanes`: how many are active. Offsets of masked lanes mean
    nothing. Where the pattern is used, `base` is the byte of its first active lane.
    """

    index: int
    shape: tuple[int, ...]
    relative: np.ndarray
    mask: np.ndarray | None
    itemsize: int
    low: int
    high: int
    lanes: int
    _runs: list[tuple[int, int]] | None = None
    _sectors: dict[int, tuple[int, int]] = field(default_factory=dict)
    _granule: int = 0

    @property
    def active(self) -> np.ndarray:
        """Offsets of the active lanes, in lane order."""
        return self.relative if self.mask is None else self.relative[self.mask]

    @property
    def bytes(self) -> int:
        return self.lanes * self.itemsize

    @property
    def granule(self) -> int:
        """The largest power of two that divides the item's size and all active offsets."""
        if not self._granule:
            spread = int(np.bitwise_or.reduce(self.active)) | self.itemsize
            self._granule = spread & -spread
        return self._granule

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The touched bytes as (start, end) pairs where that is compact, at most one for 8 lanes; else empty."""
        if self._runs is None:
            active = self.active
            breaks = np.flatnonzero(np.diff(active) != self.itemsize) + 1
            if 8 * (len(breaks) + 1) > max(self.lanes, 8):
                self._runs = []
            else:
                starts = active[np.concatenate(([0], breaks))]
                ends = active[np.concatenate((breaks - 1, [self.lanes - 1]))] + self.itemsize
                self._runs = list(zip(starts.tolist(), ends.tolist(), strict=True))
        return self._runs

    def mark(self, units: np.ndarray, base: int, value: object = True, unit: int = 1) -> None:
        """Set the entries of `units`, one for every `unit` bytes, that this pattern touches."""
        if self.runs:
            for start, end in self.runs:
                units[(base + start) // unit : (base + end) // unit] = value
            return
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
        active lanes touch. Lanes are counted along the tile's contiguous axis first, where there is one: so does
        Triton's coalescing pass give elements to threads, whether a tile is read by rows or by columns.
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
        # Masked lanes take the place of one that is active; requests with none were dropped.
        ordered = np.sort(touched, axis=1)
        distinct = len(ordered) + int(np.count_nonzero(ordered[:, 1:] != ordered[:, :-1]))
        return distinct, len(ordered)

    def by_thread(self, lanes: np.ndarray) -> np.ndarray:
        """One value a lane, in C order of the tile, put in the order of threads: the contiguous axis runs fastest."""
        axis = self.contiguous_axis if len(self.shape) > 1 else 0
        if axis == len(self.shape) - 1:
            return lanes
        return np.moveaxis(lanes.reshape(self.shape), axis, -1).reshape(-1)

    @cached_property
    def contiguous_axis(self) -> int:
        """The axis along which most neighbours lie one item apart; the last one where that is a tie."""
        offsets = self.relative.reshape(self.shape)

        def neighbours(axis: int) -> float:
            steps = np.diff(offsets, axis=axis)
            return float(np.mean(steps == self.itemsize)) if steps.size else 0.0

        return max(range(len(self.shape)), key=lambda axis: (neighbours(axis), axis))

    def _by_request(self, shift: int) -> np.ndarray:
        """Sector of each lane, a row a request; inactive lanes repeat an active one of their row."""
        sector = (self.by_thread(self.relative) + shift) // SECTOR_BYTES
        padding = -len(sector) % REQUEST_LANES
        if self.mask is None and not padding:
            return sector.reshape(-1, REQUEST_LANES)
        mask = np.ones(len(sector), bool) if self.mask is None else self.by_thread(self.mask)
        rows = np.pad(sector, (0, padding)).reshape(-1, REQUEST_LANES)
        active = np.pad(mask, (0, padding)).reshape(-1, REQUEST_LANES)
        rows, active = rows[active.any(axis=1)], active[active.any(axis=1)]
        stand_in = rows[np.arange(len(rows)), active.argmax(axis=1)]
        return np.where(active, rows, stand_in[:, None])


class Patterns:
    """The patterns of one launch, each kept once."""

    def __init__(self) -> None:
        self.all: list[Pattern] = []
        self._latest: dict[object, Pattern] = {}
        self._known: dict[object, list[Pattern]] = {}

    def find(self, addresses: np.ndarray, mask: np.ndarray | None, itemsize: int, site: object) -> tuple[Pattern, int]:
        """The pattern of these addresses (uint64, any shape; mask of the same shape) and its first active lane's
        address.

        `site` is where in the source the access stands: it mostly repeats what it did last.
        """
        if mask is not None:
            mask = None if mask.all() else mask.reshape(-1)
        shape = addresses.shape or (1,)
        # A masked lane's address may be anything.
        base = int(addresses.item(0 if mask is None else int(mask.argmax())))
        relative = np.subtract(addresses, np.uint64(base), order="C").view(np.int64).reshape(-1)
        latest = self._latest.get(site)
        if latest is None or not same(latest, shape, relative, mask, itemsize):
            latest = self._look_up(shape, relative, mask, itemsize)
            self._latest[site] = latest
        return latest, base

    def _look_up(self, shape: tuple[int, ...], relative: np.ndarray, mask: np.ndarray | None, itemsize: int) -> Pattern:
        lanes = len(relative) if mask is None else int(np.count_nonzero(mask))
        key = (len(relative), lanes, itemsize, int(relative[-1]), int(relative.sum()))
        alike = self._known.setdefault(key, [])
        for pattern in alike:
            if same(pattern, shape, relative, mask, itemsize):
                return pattern
        active = relative if mask is None else relative[mask]
        low, high = (int(active.min()), int(active.max())) if lanes else (0, 0)
        # The mask may be the kernel's own array; the offsets are ours.
        mask = None if mask is None else mask.copy()
        pattern = Pattern(len(self.all), shape, relative, mask, itemsize, low, high, lanes)
        self.all.append(pattern)
        alike.append(pattern)
        return pattern


def same(
    pattern: Pattern, shape: tuple[int, ...], relative: np.ndarray, mask: np.ndarray | None, itemsize: int
) -> bool:
    if pattern.itemsize != itemsize or pattern.shape != shape:
        return False
    if (mask is None) != (pattern.mask is None):
        return False
    if mask is not None and not (mask == pattern.mask).all():
        return False
    return bool((relative == pattern.relative).all())
