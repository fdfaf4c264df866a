"""How the lanes of one access lie relative to each other.

A kernel repeats few access patterns at many addresses: a matmul reads every tile of A with the same one. The meter
keeps a pattern and a base address for each access, and works out sectors, runs and lines once per pattern.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

__all__ = ["Pattern", "Patterns", "SECTOR_BYTES"]

SECTOR_BYTES = 32
"""The smallest transfer of a GPU: from compute capability 6.0 on a warp is served in transactions of 32 bytes
(NVIDIA, CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory")."""
_REQUEST_LANES = 32
"""One warp: the lanes whose addresses the hardware coalesces into one request."""


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
    def repeats(self) -> bool:
        """Whether several active lanes have the same offset."""
        steps = np.diff(self.active)
        return not (steps > 0).all() and not np.diff(np.sort(self.active)).all()

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
