"""Faults that are found after a launch, from its accesses.

Programs run in any order on a GPU, and one after another in the interpreter. Two programs race if one stores bytes
non-atomically and the other stores, loads or atomically updates the same bytes. There is no race if atomics order the
two accesses, as with a lock or a counter of arrivals: the earlier program performed an atomic operation (not a relaxed
one) after its access, and the later program performed one on the same address before its own access. Two cases are not
examined: loads against atomic updates, and storages in which a launch touches a stretch of more than `DENSE_UNITS`.

The lanes of one store are written in any order too. If several of them hold the same address, the result is undefined
unless their values are equal, bit by bit. Equal values are not reported.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from threeloops.inner.meter.accesses import Pattern, apart
from threeloops.inner.meter.counting import DENSE_UNITS, READS, Table, Window, distinct, ordinals_by_storage
from threeloops.inner.meter.findings import FindingKind, Incident, program_coordinates
from threeloops.inner.meter.recording import ATOMIC, LOAD, STORE, VERBS, Recording, elements_named
from threeloops.places import source_name

__all__ = ["find_faults"]

_MOST_LANES_OF_A_LOCK = 64
_MOST_PARTNERS = 16
"""The most programs that one access is reported to race with."""
_ADVICE = {
    "write-race": (
        "give every byte one program (look at the grid, and at what a program makes of its number), use an atomic "
        "operation, or combine partial results in a second launch"
    ),
    "read-write-race": "programs run in any order: read what another program stores in a launch of its own",
    "store-conflict": (
        "lanes are written in any order: give every lane an address of its own, mask all but one, or use an atomic "
        "operation"
    ),
    "accumulation": (
        "list it in reset_to_zero of @triton.autotune if the launcher allocates zeros, else in restore_value, or write "
        "it without reading it"
    ),
    "outside-view": (
        "mask these lanes, correct the offsets, or pass a tensor that has these elements (the memory is allocated, so "
        'the access was executed; views="storage" allows it)'
    ),
}


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


def find_faults(recorded: Recording, table: Table, accumulates: Sequence[str] = ()) -> None:
    """Add the faults of a launch to its incidents. `accumulates`: see Launch."""
    _find_races(recorded, table)
    _find_conflicts(recorded, table.rows)
    if recorded.strict_views:
        _find_outside_views(recorded, table.rows)
    _find_accumulation(recorded, table.rows, accumulates)


def _find_conflicts(recorded: Recording, table: np.ndarray) -> None:
    """Report stores of which several lanes write different values to one address."""
    patterns = recorded.patterns.all
    spaces = recorded.spaces.by_ordinal
    stores = table[table[:, 0] == STORE]
    crowded = [index for index in dict.fromkeys(stores[:, 2].tolist()) if patterns[index].repeats]
    if not crowded:
        return
    for _, argument, index, base, program, site, value in stores[np.isin(stores[:, 2], crowded)].tolist():
        pattern = patterns[index]
        lanes, first = _conflicting(pattern, _raw_bytes(pattern, recorded.values[value]))
        if lanes:
            space = spaces[argument]
            element = (base + first - (space.first - space.zero)) // pattern.itemsize
            message = f"lanes of one store write different values to element {element:,} of {space.name}"
            advice = _ADVICE["store-conflict"]
            recorded.incidents.add(
                Incident("store-conflict", space.name, site, program, message, advice, "lane", lanes, {program})
            )


def _conflicting(pattern: Pattern, raw: np.ndarray) -> tuple[int, int]:
    """Return how many lanes share an address with a lane that stores another value, and the first such offset in order
    of addresses. `raw`: the bytes, as `_raw_bytes` gives them."""
    order = np.argsort(pattern.active, kind="stable")
    offsets = pattern.active[order]
    values = raw.reshape(pattern.itemsize, -1).T[order]
    begins = np.flatnonzero(np.diff(offsets, prepend=offsets[0] - 1))
    sizes = np.diff(begins, append=len(offsets))
    differs = (values != np.repeat(values[begins], sizes, axis=0)).any(axis=1)
    groups = np.logical_or.reduceat(differs, begins)
    return int(sizes[groups].sum()), int(offsets[begins[groups.argmax()]])


def _find_accumulation(recorded: Recording, table: np.ndarray, arguments: Sequence[str]) -> None:
    """Report the first line that writes each of these arguments."""
    for space in recorded.spaces.by_ordinal.values():
        if space.name not in arguments:
            continue
        rows = table[(table[:, 1] == space.ordinal) & (table[:, 0] != LOAD)]
        if not len(rows):
            continue
        kind, _, _, _, program, site, _ = rows[0].tolist()
        rows = rows[rows[:, 5] == site]
        message = (
            f"{VERBS[kind]} to {space.name}, which comes out differently after the runs that compare configurations"
        )
        advice = _ADVICE["accumulation"]
        programs = set(rows[:, 4].tolist())
        recorded.incidents.add(
            Incident("accumulation", space.name, site, program, message, advice, "access", len(rows), programs)
        )


def _find_outside_views(recorded: Recording, table: np.ndarray) -> None:
    """Report accesses to elements of an argument's storage that are not its view's.

    Pointers that a kernel loaded from memory point to memory and not into a view, so they are not examined.
    """
    patterns = recorded.patterns.all
    own_pointers = np.ones(len(table), bool)
    own_pointers[list(recorded.followed)] = False
    for space in recorded.spaces.by_ordinal.values():
        rows = table[own_pointers & (table[:, 1] == space.ordinal)] if space.ordinal else table[:0]
        strays = {}
        for index, base in distinct(rows[:, 2], rows[:, 3]):
            outside = space.strays(patterns[index], base)
            if len(outside):
                strays[index, base] = outside
        for kind, _, index, base, program, site, _ in rows.tolist() if strays else ():
            if (index, base) in strays:
                outside = strays[index, base]
                which = elements_named(outside, "elements between {:,} and {:,}")
                message = (
                    f"{VERBS[kind]} outside the view {space.name}: {which} from its pointer on, but it has {space.view}"
                )
                advice = _ADVICE["outside-view"]
                lanes = len(outside)
                recorded.incidents.add(
                    Incident("outside-view", space.name, site, program, message, advice, "lane", lanes, {program})
                )


def _find_races(recorded: Recording, table: Table) -> None:
    """Report the races between programs."""
    if recorded.program < 1:
        return
    for ordinals in ordinals_by_storage(recorded):
        stored = table.stretches(ordinals, (STORE,), exact=False)
        if stored is not None and not apart(stored, table.stretches(ordinals, READS, exact=False)):
            _StorageRaces(recorded, table, ordinals).report()


class _StorageRaces:
    """The search in one storage, with these arguments."""

    def __init__(self, recorded: Recording, table: Table, ordinals: list[int]) -> None:
        self.recorded = recorded
        self.table = table.rows
        own = np.flatnonzero(np.isin(self.table[:, 1], ordinals))
        kind = self.table[own, 0]
        self.stores = self.tiles(own[kind == STORE])
        self.others = self.tiles(own[kind == LOAD]) + self.tiles(own[kind >= ATOMIC])
        # Most kernels store every byte once, and then there are no values to compare.
        unique = table.unique_bytes(ordinals, (STORE,))
        self.disjoint = unique == sum(tile.pattern.bytes for tile in self.stores)
        self.found: dict[tuple[FindingKind, int], _Race] = {}
        self._locks: dict[int, list[tuple[int, set[tuple[int, int]]]]] | None = None

    def tiles(self, rows: np.ndarray) -> list[_Tile]:
        by_access: dict[tuple[int, int, int], _Tile] = {}
        patterns = self.recorded.patterns.all
        for row, (kind, argument, pattern, base, program, site, value) in zip(
            rows.tolist(), self.table[rows].tolist(), strict=True
        ):
            tile = by_access.get((pattern, base, program))
            if tile is None:
                tile = _Tile(kind, patterns[pattern], base, program, argument, site, row, row, value)
                by_access[pattern, base, program] = tile
            tile.last = row
            tile.value = value
        return list(by_access.values())

    def report(self) -> None:
        self.find()
        for (kind, site), race in self.found.items():
            file, line = list(self.recorded.sites)[race.other.site]
            name = self.recorded.spaces.by_ordinal[race.tile.argument].name
            verb = VERBS[race.tile.kind]
            other = program_coordinates(race.other.program, self.recorded.grid)
            first = f"{verb} of {name} meets bytes that program {other} stores at {source_name(file)}:{line}"
            if kind == "write-race" and verb == "store":
                first += ", with the same values" if race.same_values else ", with different values"
            self.recorded.incidents.add(
                Incident(kind, name, site, race.tile.program, first, _ADVICE[kind], "byte", race.bytes, race.programs)
            )

    def find(self) -> None:
        patterns = self.recorded.patterns.all
        window = Window.around(patterns, [(tile.pattern.index, tile.base) for tile in [*self.stores, *self.others]])
        unit = window.unit if self.disjoint else 1
        size = window.units * window.unit // unit
        if size > DENSE_UNITS:
            return
        owner = np.full(size, -1, np.int32)
        programs = np.array([tile.program for tile in self.stores])
        if self.disjoint:
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
        """Replay the stores in the interpreter's order, byte by byte, with the value that each byte then holds."""
        memory = np.zeros(len(owner), np.uint8)
        for number, tile in enumerate(self.stores):
            places = tile.pattern.places(tile.base - start)
            raw = _raw_bytes(tile.pattern, self.recorded.values[tile.value])
            stored_by = owner[places]
            for other, count in _partners(stored_by, programs, tile.program):
                shared = stored_by == other
                same = bool((memory[places[shared]] == raw[shared]).all())
                self.note("write-race", tile, self.stores[other], count, same_values=same)
            owner[places] = number
            memory[places] = raw

    def note(self, kind: FindingKind, tile: _Tile, other: _Tile, count: int, *, same_values: bool) -> None:
        if self.ordered(other, tile) if other.last < tile.first else self.ordered(tile, other):
            return
        race = self.found.setdefault((kind, tile.site), _Race(tile, other))
        race.bytes += count
        race.programs |= {tile.program, other.program}
        race.same_values &= same_values

    def ordered(self, earlier: _Tile, later: _Tile) -> bool:
        """Return whether atomics hand over from the program of one access to the program of the other."""
        released = {place for row, places in self.locks(earlier.program) if row > earlier.last for place in places}
        return any(row < later.first and places & released for row, places in self.locks(later.program))

    def locks(self, program: int) -> list[tuple[int, set[tuple[int, int]]]]:
        """Return (row, (storage, byte) of every lane) for each of a program's atomics that order the accesses around
        them."""
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
    """Yield (store, number of units) for the stores of other programs that meet an access. -1 means that no program
    stored there."""
    foreign = stored_by[stored_by >= 0]
    foreign = foreign[programs[foreign] != own]
    if len(foreign):
        stores, counts = np.unique(foreign, return_counts=True)
        yield from list(zip(stores.tolist(), counts.tolist(), strict=True))[:_MOST_PARTNERS]


def _raw_bytes(pattern: Pattern, value: np.ndarray) -> np.ndarray:
    """Return the bytes that a store writes, in the order of `Pattern.places`: first bytes of all lanes, then second
    ones, …"""
    value = np.broadcast_to(value.reshape(-1), pattern.relative.shape) if value.size == 1 else value.reshape(-1)
    if value.itemsize != pattern.itemsize:
        value = value.astype(f"i{pattern.itemsize}")
    raw = np.ascontiguousarray(value).view(np.uint8).reshape(-1, pattern.itemsize)
    return (raw if pattern.mask is None else raw[pattern.mask]).T.reshape(-1)
