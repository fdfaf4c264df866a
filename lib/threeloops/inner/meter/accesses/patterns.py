"""How the lanes of one access lie relative to each other.

A kernel repeats few access patterns at many addresses: a matmul reads every tile of A with the same one. The meter
keeps a pattern and a base address for each access, and works out sectors, runs and lines once per pattern.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

__all__ = ["Pattern", "Patterns", "SECTOR_BYTES", "SPACE_BITS"]

SPACE_BITS = 48
"""The bits of a virtual address that are a byte of one argument (`spaces`)."""

SECTOR_BYTES = 32
"""The smallest transfer of a GPU: from compute capability 6.0 on a warp is served in transactions of 32 bytes
(NVIDIA, CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory")."""
_SECTOR_BITS = SECTOR_BYTES.bit_length() - 1
_NARROW = 1 << 30
_FEW_LANES = 1024
_REQUEST_LANES = 32
"""One warp: the lanes whose addresses the hardware coalesces into one request."""


_Identity = tuple[int, tuple[int, ...], bytes | None, bytes]
"""Size of an item, shape, mask and offsets of int64. Bytes are compared much faster than arrays."""


@dataclass(eq=False)
class Pattern:
    """Byte offsets of an access's lanes, relative to its first active lane, in C order of the tile.

    `shape`: the tile's. `offsets`: one per lane, meaningless for masked lanes; int32 if they fit, else int64. `mask`:
    bool, one per lane, or None if all are active. `low`, `high`: the smallest and largest offset of an active lane.
    `lanes`: how many are active. Methods take the pattern's `base`: the byte of its first active lane.
    """

    index: int
    shape: tuple[int, ...]
    offsets: np.ndarray
    mask: np.ndarray | None
    itemsize: int
    low: int
    high: int
    lanes: int
    _sectors: dict[int, tuple[int, int]] = field(default_factory=dict)

    def matches(self, shape: tuple[int, ...], relative: np.ndarray, mask: np.ndarray | None) -> bool:
        """Return whether the pattern has this shape, mask and offsets, given that item size and number of active lanes
        agree."""
        if self.shape != shape or (mask is None) != (self.mask is None):
            return False
        return bool((mask is None or (mask == self.mask).all()) and (relative == self.offsets).all())

    @property
    def relative(self) -> np.ndarray:
        """The offsets as int64."""
        return self.offsets.astype(np.int64, copy=False)

    @property
    def active(self) -> np.ndarray:
        """Offsets of the active lanes as int64, in lane order."""
        return self._active.astype(np.int64, copy=False)

    @cached_property
    def _active(self) -> np.ndarray:
        return self.offsets if self.mask is None else self.offsets[self.mask]

    @property
    def bytes(self) -> int:
        return self.lanes * self.itemsize

    @cached_property
    def granule(self) -> int:
        """The largest power of two that divides the item's size and all active offsets."""
        spread = int(np.bitwise_or.reduce(self._active)) | self.itemsize
        return spread & -spread

    @cached_property
    def repeats(self) -> bool:
        """Whether several active lanes have the same offset."""
        lanes = self._active
        if (lanes[1:] > lanes[:-1]).all():
            return False
        ordered = np.sort(lanes)
        return bool((ordered[1:] == ordered[:-1]).any())

    @cached_property
    def spans(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The touched bytes as starts and ends of stretches if there are few, at most one for every 8 lanes."""
        lanes = self._active
        parts = (lanes[: len(lanes) // 4], lanes)  # of scattered lanes a quarter is enough to tell
        for part in parts if len(lanes) > _FEW_LANES else (lanes,):
            apart = part[1:] - part[:-1] != self.itemsize
            if 8 * (np.count_nonzero(apart) + 1) > max(self.lanes, 8):
                return None
        breaks = np.flatnonzero(apart)
        starts = lanes[np.concatenate(([0], breaks + 1))].astype(np.int64)
        return starts, lanes[np.concatenate((breaks, [self.lanes - 1]))] + np.int64(self.itemsize)

    @cached_property
    def hull(self) -> tuple[np.ndarray, np.ndarray]:
        """The single span from the first to the last byte touched."""
        return np.array([self.low]), np.array([self.high + self.itemsize])

    @cached_property
    def runs(self) -> list[tuple[int, int]]:
        """The spans as (start, end) pairs; empty if there are too many."""
        return [] if self.spans is None else list(zip(*(bound.tolist() for bound in self.spans), strict=True))

    def mark(self, units: np.ndarray, base: int, value: object = True, unit: int = 1) -> None:
        """Set the entries of `units`, one for every `unit` bytes, that this pattern touches."""
        for start, end in self.runs:
            units[(base + start) // unit : (base + end) // unit] = value
        if not self.runs:
            units[self.places(base, unit)] = value

    def look(self, units: np.ndarray, base: int, unit: int = 1) -> np.ndarray:
        """Return the entries of `units` that this pattern touches, in no particular order."""
        if self.runs:
            return np.concatenate([units[(base + start) // unit : (base + end) // unit] for start, end in self.runs])
        return units[self.places(base, unit)]

    def places(self, base: int, unit: int = 1) -> np.ndarray:
        """Return the numbers of the units that this pattern touches, of `unit` bytes, a power of two."""
        first = (self.active + base) >> (unit.bit_length() - 1)
        parts = self.itemsize // unit
        return first if parts == 1 else np.concatenate([first + part for part in range(parts)])

    def sectors(self, base: int) -> tuple[int, int]:
        """Return (sectors, requests) of this pattern with its first lane at byte `base`.

        A request is REQUEST_LANES consecutive lanes with at least one active. It costs the distinct sectors that its
        active lanes touch. Lanes are counted along the tile's contiguous axis first, if there is one, because that is
        how Triton's coalescing pass assigns elements to threads, whether a tile is read by rows or by columns.
        """
        shift = base % SECTOR_BYTES
        if shift not in self._sectors:
            self._sectors[shift] = self._count_sectors(shift)
        return self._sectors[shift]

    def _count_sectors(self, shift: int) -> tuple[int, int]:
        touched = self._requests + shift >> _SECTOR_BITS
        if (shift | self.granule) % self.itemsize or self.itemsize > SECTOR_BYTES:
            # Unaligned items may straddle two sectors.
            ends = self._requests + (shift + self.itemsize - 1) >> _SECTOR_BITS
            touched = np.concatenate((touched, ends), axis=1)
        touched.sort(axis=1)
        distinct = len(touched) + int(np.count_nonzero(touched[:, 1:] != touched[:, :-1]))
        return distinct, len(touched)

    def by_thread(self, lanes: np.ndarray) -> np.ndarray:
        """Reorder values, one per lane in C order of the tile, to the order of threads: contiguous axis fastest."""
        axis = self.contiguous_axis if len(self.shape) > 1 else 0
        if axis == len(self.shape) - 1:
            return lanes
        return np.moveaxis(lanes.reshape(self.shape), axis, -1).reshape(-1)

    @cached_property
    def contiguous_axis(self) -> int:
        """The axis along which most neighbours lie one item apart; of equal ones the last."""
        offsets, last = self.offsets.reshape(self.shape), len(self.shape) - 1

        def neighbours(axis: int) -> float:
            along = offsets.swapaxes(axis, last)
            steps = along[..., 1:] - along[..., :-1]
            return np.count_nonzero(steps == self.itemsize) / max(steps.size, 1)

        if neighbours(last) == 1:
            return last  # no axis has more
        return max(range(last + 1), key=lambda axis: (neighbours(axis), axis))

    @cached_property
    def _requests(self) -> np.ndarray:
        """Offsets, one row per request with an active lane; inactive lanes repeat an active one."""
        lanes = self.by_thread(self.offsets)
        padding = -len(self.offsets) % _REQUEST_LANES
        if self.mask is None and not padding:
            return lanes.reshape(-1, _REQUEST_LANES)
        mask = np.ones(len(lanes), bool) if self.mask is None else self.by_thread(self.mask)
        if padding:
            lanes, mask = (np.append(array, np.zeros(padding, array.dtype)) for array in (lanes, mask))
        active = np.flatnonzero(mask)
        request = active // _REQUEST_LANES
        new = np.ones(len(active), bool)
        np.not_equal(request[1:], request[:-1], out=new[1:])
        first = active[new]
        used = request[new]
        rows, masks = (array.reshape(-1, _REQUEST_LANES)[used] for array in (lanes, mask))
        return np.where(masks, rows, lanes[first][:, None])


class Patterns:
    """The patterns of one launch, without duplicates."""

    def __init__(self) -> None:
        self.all: list[Pattern] = []
        self._latest: dict[object, tuple[_Identity, Pattern]] = {}
        self._known: dict[object, list[Pattern]] = {}

    def find(self, addresses: np.ndarray, mask: np.ndarray | None, itemsize: int, site: object) -> tuple[Pattern, int]:
        """Return the pattern of these addresses (uint64, any shape; mask likewise) and the address of the first active
        lane.

        `site` identifies the source line. A line mostly repeats its latest pattern for each argument, whose number is
        in the highest bits of an address.
        """
        first = 0
        flags = None if mask is None else mask.tobytes()
        if flags is not None:
            # A masked lane's address may be anything.
            first = max(flags.find(1), 0)
            flags = flags if 0 in flags else None
        base = int(addresses.item(first))
        identity = itemsize, addresses.shape or (1,), flags, np.subtract(addresses, np.uint64(base)).tobytes()
        place = site, base >> SPACE_BITS
        latest = self._latest.get(place)
        if latest is None or latest[0] != identity:
            latest = self._latest[place] = identity, self._look_up(identity)
        return latest[1], base

    def _look_up(self, identity: _Identity) -> Pattern:
        itemsize, shape, flags, offsets = identity
        relative = np.frombuffer(offsets, np.int64)
        mask = None if flags is None else np.frombuffer(flags, bool)
        lanes = len(relative) if mask is None else int(np.count_nonzero(mask))
        key = (len(relative), lanes, itemsize, int(relative[-1]), int(np.add.reduce(relative)))
        alike = self._known.setdefault(key, [])
        for pattern in alike:
            if pattern.matches(shape, relative, mask):
                return pattern
        active = relative if mask is None else relative[mask]
        low, high = _bounds(active) if lanes else (0, 0)
        lowest, highest = (low, high) if mask is None else _bounds(relative)
        if lowest >= -_NARROW and highest < _NARROW:
            # Half the memory, and sorted in half the time.
            relative = relative.astype(np.int32)
        pattern = Pattern(len(self.all), shape, relative, mask, itemsize, low, high, lanes)
        self.all.append(pattern)
        alike.append(pattern)
        return pattern


def _bounds(offsets: np.ndarray) -> tuple[int, int]:
    return int(np.minimum.reduce(offsets)), int(np.maximum.reduce(offsets))
