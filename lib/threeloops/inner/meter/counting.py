"""From a recording to the launch's traffic, and to the races between its programs.

Programs run in any order on a GPU, and one after another in the interpreter. Two programs race where one stores bytes,
not atomically, that the other stores, loads or updates atomically, unless atomics order them: the earlier program after
its access and the later one before its own performed an atomic operation (not a relaxed one) on the same address, as
with a lock or a counter of arrivals. Not examined: loads against atomic updates, and storages of which a launch touches
a stretch of more than `_DENSE_UNITS`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from threeloops.inner.launches import Launch
from threeloops.inner.meter.accesses import SECTOR_BYTES, Pattern
from threeloops.inner.meter.findings import FindingKind, Incident, base_name, program_coordinates
from threeloops.inner.meter.l2 import L2, model
from threeloops.inner.meter.recording import ATOMIC, LOAD, STORE, VERBS, Access, Recording
from threeloops.inner.meter.traffic import ArgumentTraffic, LaunchTraffic

__all__ = ["find_races", "rows", "traffic_of"]

_DENSE_UNITS = 1 << 26
"""Up to this many units get a flag each. Beyond it, where few units of many are touched, those are sorted."""
_MOST_LANES_OF_A_LOCK = 64
_MOST_PARTNERS = 16
"""The most programs that one access is reported to race with."""
_ADVICE = {
    "write-race": (
        "give every byte one program (look at the grid, and at what a program makes of its number), use an atomic "
        "operation, or combine partial results in a second launch"
    ),
    "read-write-race": "programs run in any order: read what another program stores in a launch of its own",
}


def rows(recording: Recording) -> np.ndarray:
    """The accesses as int64, one per row, columns as in Access."""
    return np.array(recording.accesses, dtype=np.int64).reshape(-1, len(Access._fields))


def traffic_of(launch: Launch, recording: Recording, table: np.ndarray, l2: L2 | None) -> LaunchTraffic:
    patterns, spaces = recording.patterns.all, recording.spaces.by_ordinal
    kind, argument, pattern = table[:, 0], table[:, 1], table[:, 2]
    lanes = np.array([each.lanes for each in patterns] or [0])
    size = np.array([each.bytes for each in patterns] or [0])[pattern]

    def traffic(own: np.ndarray) -> ArgumentTraffic:
        loads, stores = own & (kind != STORE), own & (kind != LOAD)
        unique = (_union(patterns, table[each]) for each in (loads, stores))
        return ArgumentTraffic(int(size[loads].sum()), int(size[stores].sum()), *unique)

    arguments: dict[str, ArgumentTraffic] = {}
    total = ArgumentTraffic()
    for ordinals in _ordinals_by_storage(recording):
        for ordinal in ordinals:
            alone = arguments[spaces[ordinal].name] = traffic(argument == ordinal)
        # Views of one storage may overlap, so the bytes of all of them together are counted anew.
        total += alone if len(ordinals) == 1 else traffic(np.isin(argument, ordinals))
    sectors, requests = _count_sectors(patterns, table)
    loaded, stored = model(recording, table, l2) if l2 else (None, None)
    return LaunchTraffic(
        name=launch.name,
        grid=recording.grid,
        file=launch.file,
        line=launch.line,
        findings=recording.incidents.findings(launch.name, recording.grid, list(recording.sites)),
        **vars(total),
        dram_loaded=loaded,
        dram_stored=stored,
        sectors=sectors,
        requests=requests,
        atomics=int(lanes[pattern[kind >= ATOMIC]].sum()),
        programs=recording.program + 1,
        largest_tile=recording.tiles.largest,
        most_held=recording.tiles.most_held,
        flops=dict(recording.flops.counts),
        tf32_flops=recording.flops.tf32,
        arguments=arguments,
    )


def _ordinals_by_storage(recording: Recording) -> list[list[int]]:
    storages: dict[int, list[int]] = {}
    for space in recording.spaces.by_ordinal.values():
        storages.setdefault(space.storage, []).append(space.ordinal)
    return list(storages.values())


def _count_sectors(patterns: list[Pattern], table: np.ndarray) -> tuple[int, int]:
    """(sectors, requests) of all accesses."""
    places, times = _distinct(table[:, 2], table[:, 3] % SECTOR_BYTES)
    counted = [patterns[pattern].sectors(shift) for pattern, shift in places]
    sectors = sum(n * each for (each, _), n in zip(counted, times, strict=True))
    requests = sum(n * each for (_, each), n in zip(counted, times, strict=True))
    return sectors, requests


def _distinct(pattern: np.ndarray, base: np.ndarray) -> tuple[list[tuple[int, int]], list[int]]:
    """Each distinct (pattern, base) and how often it occurs. Much faster than np.unique over an axis."""
    order = np.lexsort((base, pattern))
    pattern, base = pattern[order], base[order]
    first = np.ones(len(pattern), bool)
    first[1:] = (pattern[1:] != pattern[:-1]) | (base[1:] != base[:-1])
    starts = np.flatnonzero(first)
    times = np.diff(starts, append=len(pattern))
    return list(zip(pattern[starts].tolist(), base[starts].tolist(), strict=True)), times.tolist()


def _union(patterns: list[Pattern], table: np.ndarray) -> int:
    """How many bytes of one storage these accesses touch, each counted once."""
    if not len(table):
        return 0
    places, _ = _distinct(table[:, 2], table[:, 3])
    window = _Window.around(patterns, places)
    if window.units > _DENSE_UNITS:
        parts = [patterns[index].places(base - window.start, window.unit) for index, base in places]
        return len(np.unique(np.concatenate(parts))) * window.unit
    touched = np.zeros(window.units, bool)
    for index, base in places:
        patterns[index].mark(touched, base - window.start, unit=window.unit)
    return int(np.count_nonzero(touched)) * window.unit


@dataclass(frozen=True)
class _Window:
    """A stretch of one storage that holds some accesses: bytes from `start`, in `units` of `unit` bytes, each of which
    an access touches as a whole or not at all."""

    start: int
    unit: int
    units: int

    @classmethod
    def around(cls, patterns: list[Pattern], places: list[tuple[int, int]]) -> "_Window":
        start = min(base + patterns[index].low for index, base in places)
        end = max(base + patterns[index].high + patterns[index].itemsize for index, base in places)
        spread = 0
        for index, base in places:
            spread |= patterns[index].granule | (base - start)
        unit = spread & -spread
        return cls(start, unit, (end - start) // unit)


@dataclass
class _Tile:
    """All equal accesses of one program: rows `first` to `last` of the recording."""

    kind: int
    pattern: Pattern
    base: int
    program: int
    argument: int
    site: int
    first: int
    last: int
    value: int


@dataclass
class _Race:
    """The races of one source line with one argument, all together; `tile` and `other` are the first that met."""

    tile: _Tile
    other: _Tile
    bytes: int = 0
    programs: set[int] = field(default_factory=set)
    same_values: bool = True


def find_races(recorded: Recording, table: np.ndarray) -> None:
    """Add the races of a launch to its incidents."""
    for ordinals in _ordinals_by_storage(recorded):
        own = np.flatnonzero(np.isin(table[:, 1], ordinals))
        if (table[own, 0] == STORE).any() and len(np.unique(table[own, 4])) > 1:
            _StorageRaces(recorded, table, own).report()


class _StorageRaces:
    """The search in one storage; `own` are the rows of the table that touch it."""

    def __init__(self, recorded: Recording, table: np.ndarray, own: np.ndarray) -> None:
        self.recorded, self.table = recorded, table
        kind = table[own, 0]
        self.store_rows = own[kind == STORE]
        self.stores = self.tiles(self.store_rows)
        self.others = self.tiles(own[kind == LOAD]) + self.tiles(own[kind >= ATOMIC])
        self.found: dict[tuple[FindingKind, int], _Race] = {}
        self._locks: dict[int, list[tuple[int, set[tuple[int, int]]]]] | None = None

    def tiles(self, rows: np.ndarray) -> list[_Tile]:
        known: dict[tuple[int, int, int], _Tile] = {}
        patterns = self.recorded.patterns.all
        for row, (kind, argument, pattern, base, program, site, value) in zip(
            rows.tolist(), self.table[rows].tolist(), strict=True
        ):
            tile = known.get((pattern, base, program))
            if tile is None:
                tile = _Tile(kind, patterns[pattern], base, program, argument, site, row, row, value)
                known[pattern, base, program] = tile
            tile.last, tile.value = row, value
        return list(known.values())

    def report(self) -> None:
        self.find()
        for (kind, site), race in self.found.items():
            file, line = list(self.recorded.sites)[race.other.site]
            name = self.recorded.spaces.by_ordinal[race.tile.argument].name
            verb = VERBS[race.tile.kind]
            other = program_coordinates(race.other.program, self.recorded.grid)
            first = f"{verb} of {name} meets bytes that program {other} stores at {base_name(file)}:{line}"
            if kind == "write-race" and verb == "store":
                first += ", with the same values" if race.same_values else ", with different values"
            self.recorded.incidents.add(
                Incident(kind, name, site, race.tile.program, first, _ADVICE[kind], "byte", race.bytes, race.programs)
            )

    def find(self) -> None:
        patterns = self.recorded.patterns.all
        window = _Window.around(patterns, [(tile.pattern.index, tile.base) for tile in [*self.stores, *self.others]])
        # Most kernels store every byte once, and then there are no values to compare.
        disjoint = _union(patterns, self.table[self.store_rows]) == sum(tile.pattern.bytes for tile in self.stores)
        unit = window.unit if disjoint else 1
        size = window.units * window.unit // unit
        if size > _DENSE_UNITS:
            return
        owner = np.full(size, -1, np.int32)
        programs = np.array([tile.program for tile in self.stores])
        if disjoint:
            for number, tile in enumerate(self.stores):
                tile.pattern.mark(owner, tile.base - window.start, number, unit)
        else:
            self.compare_stores(owner, programs, window.start)
        for tile in self.others:
            kind: FindingKind = "read-write-race" if tile.kind == LOAD else "write-race"
            stored_by = tile.pattern.look(owner, tile.base - window.start, unit)
            for other, units in _partners(stored_by, programs, tile.program):
                self.note(kind, tile, self.stores[other], units * unit, same_values=False)

    def compare_stores(self, owner: np.ndarray, programs: np.ndarray, start: int) -> None:
        """Replay the stores in the interpreter's order, byte by byte, with what each byte then holds."""
        memory = np.zeros(len(owner), np.uint8)
        for number, tile in enumerate(self.stores):
            places = tile.pattern.places(tile.base - start)
            raw = _raw_bytes(tile.pattern, self.recorded.values[tile.value])
            stored_by = owner[places]
            for other, count in _partners(stored_by, programs, tile.program):
                shared = stored_by == other
                same = bool((memory[places[shared]] == raw[shared]).all())
                self.note("write-race", tile, self.stores[other], count, same_values=same)
            owner[places], memory[places] = number, raw

    def note(self, kind: FindingKind, tile: _Tile, other: _Tile, count: int, *, same_values: bool) -> None:
        if self.ordered(other, tile) if other.last < tile.first else self.ordered(tile, other):
            return
        race = self.found.setdefault((kind, tile.site), _Race(tile, other))
        race.bytes += count
        race.programs |= {tile.program, other.program}
        race.same_values &= same_values

    def ordered(self, earlier: _Tile, later: _Tile) -> bool:
        """Whether atomics hand over from the program of one access to that of the other."""
        released = {place for row, places in self.locks(earlier.program) if row > earlier.last for place in places}
        return any(row < later.first and places & released for row, places in self.locks(later.program))

    def locks(self, program: int) -> list[tuple[int, set[tuple[int, int]]]]:
        """(row, (storage, byte) of every lane) of a program's atomics that order what surrounds them."""
        if self._locks is None:
            self._locks = {}
            for row in np.flatnonzero(self.table[:, 0] == ATOMIC).tolist():
                _, argument, index, base, owner, *_ = self.table[row].tolist()
                pattern = self.recorded.patterns.all[index]
                if pattern.lanes <= _MOST_LANES_OF_A_LOCK:
                    storage = self.recorded.spaces.by_ordinal[argument].storage
                    places = {(storage, base + offset) for offset in pattern.active.tolist()}
                    self._locks.setdefault(owner, []).append((row, places))
        return self._locks.get(program, [])


def _partners(stored_by: np.ndarray, programs: np.ndarray, own: int) -> Iterator[tuple[int, int]]:
    """(store, how many units) for the stores of other programs that meet an access. -1: nobody stored there."""
    foreign = stored_by[stored_by >= 0]
    foreign = foreign[programs[foreign] != own]
    if len(foreign):
        stores, counts = np.unique(foreign, return_counts=True)
        yield from list(zip(stores.tolist(), counts.tolist(), strict=True))[:_MOST_PARTNERS]


def _raw_bytes(pattern: Pattern, value: np.ndarray) -> np.ndarray:
    """The bytes that a store writes, in the order of `Pattern.places`: first bytes of all lanes, then second ones, …"""
    value = np.broadcast_to(value.reshape(-1), pattern.relative.shape) if value.size == 1 else value.reshape(-1)
    if value.itemsize != pattern.itemsize:
        value = value.astype(f"i{pattern.itemsize}")
    raw = np.ascontiguousarray(value).view(np.uint8).reshape(-1, pattern.itemsize)
    return (raw if pattern.mask is None else raw[pattern.mask]).T.reshape(-1)
