"""A model of a GPU's L2 cache: how much of a launch's traffic reaches memory.

The cache is set-associative, evicts the least recently used line, holds lines of sectors, and writes back. A load
fetches the sectors that it misses. A store fetches nothing (the cache keeps a mask of written bytes) and leaves its
sectors dirty. A dirty sector is written to memory when its line is evicted or at the end of the launch. Every launch
starts with an empty cache. L1 is not modelled: a program asks L2 for everything.

The interpreter runs one program after another, z fastest, but a GPU starts programs x fastest and runs many at once.
The model holds `resident_programs` of them. They take turns, with one access (a whole tile) per turn. When a program
ends, the next one in launch order takes its place. Storages follow each other at 512-byte boundaries in the order of
the arguments, and a line's set is its number modulo the number of sets.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from threeloops.hardware.accelerators import accelerator
from threeloops.inner.meter.accesses import Pattern
from threeloops.inner.meter.recording import LOAD, STORE, Recording

__all__ = ["L2", "model"]

_STORAGE_ALIGNMENT = 512
"""The alignment of PyTorch's caching allocator for CUDA."""
_DEFAULT_WAYS = 16
"""The assumed associativity, which is not published for most GPUs."""


@dataclass(frozen=True)
class _Stream:
    """Accesses to lines in time order: line number, sectors touched, sectors wholly covered (one bit each), kind."""

    lines: np.ndarray
    touched: np.ndarray
    covered: np.ndarray
    kinds: np.ndarray


def _stream(recorded: Recording, table: np.ndarray, line_bytes: int, sector_bytes: int) -> _Stream:
    """Return the lines that every access touches, in ascending order within an access."""
    starts = _storage_starts(recorded)
    base = table[:, 3] + np.array([starts.get(argument, 0) for argument in range(max(starts) + 1)])[table[:, 1]]
    line, within = np.divmod(base, line_bytes)
    keys, which = np.unique(table[:, 2] * line_bytes + within, return_inverse=True)
    parts = [
        _lines_of(recorded.patterns.all[key // line_bytes], key % line_bytes, line_bytes, sector_bytes)
        for key in keys.tolist()
    ]
    lengths = np.array([len(lines) for lines, _, _ in parts])
    begins = np.cumsum(lengths) - lengths
    counts = lengths[which]
    # For each access in turn, the positions of its pattern's lines in the pool of all patterns' lines.
    take = np.arange(counts.sum()) + np.repeat(begins[which] - (np.cumsum(counts) - counts), counts)
    lines, touched, covered = (np.concatenate(pool) for pool in zip(*parts, strict=True))
    return _Stream(lines[take] + np.repeat(line, counts), touched[take], covered[take], np.repeat(table[:, 0], counts))


def _storage_starts(recorded: Recording) -> dict[int, int]:
    """Return the start of each argument's storage in the model's memory, by the argument's ordinal."""
    place = 0
    starts: dict[int, int] = {}
    # The space of real addresses was added last and lies behind the arguments.
    for space in recorded.spaces.by_ordinal.values():
        if space.storage not in starts:
            starts[space.storage] = place
            place += -(-(space.end - space.zero) // _STORAGE_ALIGNMENT) * _STORAGE_ALIGNMENT
    return {space.ordinal: starts[space.storage] for space in recorded.spaces.by_ordinal.values()}


def _lines_of(
    pattern: Pattern, within: int, line_bytes: int, sector_bytes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (line, touched, covered) for a pattern whose base lies `within` bytes into line 0."""
    offsets = _runs(np.sort(pattern.active))[0] + within
    width = pattern.itemsize
    if (pattern.granule | within) % width or width > sector_bytes:
        # Items that may straddle sectors count as bytes.
        offsets = _runs(np.sort((offsets[:, None] + np.arange(width)).reshape(-1)))[0]
        width = 1
    sectors, counts = _runs(offsets // sector_bytes)
    line, place = np.divmod(sectors, line_bytes // sector_bytes)
    bit = np.left_shift(1, place).astype(np.uint8)
    covered = np.where(counts * width >= sector_bytes, bit, 0).astype(np.uint8)
    lines, lengths = _runs(line)
    first = np.cumsum(lengths) - lengths
    return lines, np.bitwise_or.reduceat(bit, first), np.bitwise_or.reduceat(covered, first)


def _runs(ascending: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values of a sorted array, and how often each occurs."""
    new = np.ones(len(ascending), bool)
    np.not_equal(ascending[1:], ascending[:-1], out=new[1:])
    first = np.flatnonzero(new)
    return ascending[first], np.diff(first, append=len(ascending))


@dataclass(frozen=True)
class L2:
    """Sizes in bytes; `resident_programs` = multiprocessors × programs that run on each at once."""

    size_bytes: int
    ways: int = _DEFAULT_WAYS
    line_bytes: int = 128
    sector_bytes: int = 32
    resident_programs: int = 1
    name: str = ""

    def __post_init__(self) -> None:
        for quantity in ("size_bytes", "ways", "line_bytes", "sector_bytes", "resident_programs"):
            if getattr(self, quantity) < 1:
                raise ValueError(f"{quantity} = {getattr(self, quantity)}: expected a positive number")
        if self.line_bytes % self.sector_bytes or self.line_bytes > 8 * self.sector_bytes:
            raise ValueError(
                f"line_bytes = {self.line_bytes}: expected 1 to 8 sectors of sector_bytes = {self.sector_bytes}"
            )
        if self.size_bytes % (self.ways * self.line_bytes):
            raise ValueError(
                f"size_bytes = {self.size_bytes}: expected a multiple of ways × line_bytes = "
                f"{self.ways * self.line_bytes}; choose other ways"
            )

    @classmethod
    def of(cls, device: str, *, ways: int = _DEFAULT_WAYS, programs_per_multiprocessor: int = 1) -> "L2":
        """Return the last cache before memory of a device in the hardware table ("H100 SXM", "MI300X"). Raises
        LookupError."""
        chosen = accelerator(device)
        size = chosen.caches.l3_bytes or chosen.caches.l2_bytes
        if size is None or chosen.multiprocessors is None:
            raise LookupError(f"{chosen.name}: no size of its L2 is published; give an L2(size_bytes=…) instead")
        resident = chosen.multiprocessors * programs_per_multiprocessor
        return cls(size, ways, resident_programs=resident, name=chosen.name)

    @property
    def sets(self) -> int:
        return self.size_bytes // (self.ways * self.line_bytes)

    def __str__(self) -> str:
        mebi = self.size_bytes / 2**20
        kibi = self.size_bytes / 2**10
        size = f"{mebi:.4g} MiB" if mebi >= 1 else f"{kibi:.4g} KiB"
        name = f"{self.name}: " if self.name else ""
        return (
            f"{name}{size}, {self.ways}-way, least recently used out first, lines of {self.line_bytes} bytes "
            f"in sectors of {self.sector_bytes}, write-back, empty at the start of every launch; programs start "
            f"x fastest, {self.resident_programs} resident, in turns of one access"
        )


def model(recorded: Recording, table: np.ndarray, l2: L2) -> tuple[int, int]:
    """Return the bytes that a launch loads from memory and stores to it."""
    if not len(table):
        return 0, 0
    order = _launch_order(table[:, 4], recorded.grid, l2.resident_programs)
    fetched, written = _simulate(l2, _stream(recorded, table[order], l2.line_bytes, l2.sector_bytes))
    return fetched * l2.sector_bytes, written * l2.sector_bytes


def _launch_order(programs: np.ndarray, grid: tuple[int, int, int], resident: int) -> np.ndarray:
    """Return the order in which accesses reach the cache. `programs`: the program of each access, in the interpreter's
    numbering; accesses of one program are in their own order."""
    rest, z = np.divmod(programs, grid[2])
    x, y = np.divmod(rest, grid[1])
    launched = x + grid[0] * (y + grid[1] * z)
    own_order = np.argsort(launched, kind="stable")
    ids, first, lengths = np.unique(launched[own_order], return_index=True, return_counts=True)
    turn = np.empty(len(programs), np.int64)
    turn[own_order] = np.arange(len(programs)) - np.repeat(first, lengths)
    free = [0] * min(resident, len(ids))
    starts = np.empty(len(ids), np.int64)
    for number, length in enumerate(lengths.tolist()):
        starts[number] = heapq.heappop(free)
        heapq.heappush(free, int(starts[number]) + length)
    return np.lexsort((launched, turn + starts[np.searchsorted(ids, launched)]))


def _simulate(l2: L2, accesses: _Stream) -> tuple[int, int]:
    """Count the sectors fetched from memory and written to it.

    Sets are independent, so all of them advance together: their first accesses, then their second ones, and so on.
    """
    where = accesses.lines % l2.sets
    order = np.argsort(where, kind="stable")
    where = where[order]
    lines = accesses.lines[order]
    kinds = accesses.kinds[order]
    # Successive accesses of one kind to one line are a single access.
    new = np.ones(len(lines), bool)
    new[1:] = (lines[1:] != lines[:-1]) | (kinds[1:] != kinds[:-1])
    first = np.flatnonzero(new)
    touched, covered = (np.bitwise_or.reduceat(bits[order], first) for bits in (accesses.touched, accesses.covered))
    where = where[first]
    lines = lines[first]
    kinds = kinds[first]
    sets, begins, lengths = np.unique(where, return_index=True, return_counts=True)
    turn = np.arange(len(lines)) - np.repeat(begins, lengths)
    by_turn = np.argsort(turn, kind="stable")
    compact = np.repeat(np.arange(len(sets)), lengths)[by_turn]
    lines, touched, covered, kinds = (values[by_turn] for values in (lines, touched, covered, kinds))
    bounds = np.searchsorted(turn[by_turn], np.arange(lengths.max()))
    cache = _Cache(len(sets), l2.ways)
    for now, (start, end) in enumerate(zip(bounds, [*bounds[1:], len(lines)], strict=True)):
        this_turn = slice(start, end)
        cache.advance(
            now, compact[this_turn], lines[this_turn], touched[this_turn], covered[this_turn], kinds[this_turn]
        )
    return cache.fetched, cache.written + int(np.bitwise_count(cache.dirty).sum())


class _Cache:
    """The state of all sets: for every way its line, when it was last used, and its valid and dirty sectors as bits."""

    def __init__(self, sets: int, ways: int) -> None:
        self.ways = ways
        self.lines = np.full((sets, ways), -1, np.int64)
        self.used = np.full((sets, ways), -1, np.int64)
        self.valid = np.zeros(sets * ways, np.uint8)
        self.dirty = np.zeros(sets * ways, np.uint8)
        self.fetched = self.written = 0

    def advance(
        self, now: int, sets: np.ndarray, lines: np.ndarray, touched: np.ndarray, covered: np.ndarray, kinds: np.ndarray
    ) -> None:
        """Make one access to each of these distinct sets."""
        match = self.lines[sets] == lines[:, None]
        hit = match.any(axis=1)
        slot = sets * self.ways + np.where(hit, match.argmax(axis=1), self.used[sets].argmin(axis=1))
        valid = self.valid[slot]
        dirty = self.dirty[slot]
        self.written += int(np.bitwise_count(dirty[~hit]).sum())
        valid = np.where(hit, valid, 0)
        dirty = np.where(hit, dirty, 0)
        reads = kinds != STORE
        writes = kinds != LOAD
        self.fetched += int(np.bitwise_count((touched & ~valid)[reads]).sum())
        self.valid[slot] = valid | np.where(reads, touched, covered)
        self.dirty[slot] = dirty | np.where(writes, touched, 0)
        self.lines.reshape(-1)[slot] = lines
        self.used.reshape(-1)[slot] = now
