"""Count a launch's traffic from its recording."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product

import numpy as np

from threeloops.inner.launches import Launch
from threeloops.inner.meter.accesses import SECTOR_BYTES, Pattern, Stretches
from threeloops.inner.meter.l2 import L2, model
from threeloops.inner.meter.recording import ATOMIC, LOAD, RELAXED_ATOMIC, STORE, VERBS, Access, Recording
from threeloops.inner.meter.traffic import ArgumentTraffic, LaunchTraffic

__all__ = ["DENSE_UNITS", "READS", "Table", "Window", "distinct", "ordinals_by_storage", "traffic_of"]

READS = (LOAD, ATOMIC, RELAXED_ATOMIC)
_WRITES = (STORE, ATOMIC, RELAXED_ATOMIC)
DENSE_UNITS = 1 << 26
"""Up to this many units get a flag each. With more units, few of them are touched, so the touched ones are sorted
instead."""


class Table:
    """The accesses of one launch, in their order. `rows`: int64, one access per row, columns as in Access."""

    def __init__(self, recording: Recording) -> None:
        self.patterns = recording.patterns.all
        self.rows = np.array(recording.accesses, dtype=np.int64).reshape(-1, len(Access._fields))
        self._stretches: dict[tuple[tuple[int, int], ...], Stretches | None] = {}

    @cached_property
    def _groups(self) -> dict[tuple[int, int], np.ndarray]:
        """The rows of each argument and kind."""
        kinds = len(VERBS)
        keys = self.rows[:, 1] * kinds + self.rows[:, 0]
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        bounds = [0, *(np.flatnonzero(keys[1:] != keys[:-1]) + 1).tolist(), len(keys)]
        parts = pairwise(bounds) if len(keys) else ()
        return {divmod(int(keys[start]), kinds): self.rows[order[start:end]] for start, end in parts}

    def _present(self, ordinals: Iterable[int], kinds: Iterable[int]) -> tuple[tuple[int, int], ...]:
        return tuple(key for key in product(ordinals, kinds) if key in self._groups)

    def of(self, ordinals: Iterable[int], kinds: Iterable[int]) -> np.ndarray:
        """Return the rows of these kinds of accesses to these arguments, in any order."""
        groups = [self._groups[key] for key in self._present(ordinals, kinds)]
        if len(groups) == 1:
            return groups[0]
        return np.concatenate(groups) if groups else self.rows[:0]

    def stretches(self, ordinals: Iterable[int], kinds: Iterable[int], *, exact: bool) -> Stretches | None:
        """Return the stretches of `of`, or None if there are no rows. `exact`: see Stretches.of."""
        present = self._present(ordinals, kinds)
        if not present:
            return None
        if present not in self._stretches:
            self._stretches[present] = self._merge(ordinals, kinds, exact=True)
        stretches = self._stretches[present]
        return self._merge(ordinals, kinds, exact=False) if stretches is None and not exact else stretches

    def _merge(self, ordinals: Iterable[int], kinds: Iterable[int], *, exact: bool) -> Stretches | None:
        rows = self.of(ordinals, kinds)
        return Stretches.of(self.patterns, rows[:, 2], rows[:, 3], rows[:, 4], exact=exact)

    def unique_bytes(self, ordinals: Iterable[int], kinds: Iterable[int]) -> int:
        """Return how many bytes of one storage these accesses touch, each counted once."""
        stretches = self.stretches(ordinals, kinds, exact=True)
        if stretches is not None:
            return stretches.covered
        return _union(self.patterns, self.of(ordinals, kinds))


def traffic_of(launch: Launch, recording: Recording, table: Table, l2: L2 | None) -> LaunchTraffic:
    patterns = table.patterns
    spaces = recording.spaces.by_ordinal
    kind = table.rows[:, 0]
    program = table.rows[:, 4]
    lanes = np.array([pattern.lanes for pattern in patterns] or [0])
    size = np.array([pattern.bytes for pattern in patterns] or [0])

    def traffic(ordinals: list[int]) -> ArgumentTraffic:
        moved = (table.of(ordinals, kinds) for kinds in (READS, _WRITES))
        requested = (int(np.add.reduce(size[rows[:, 2]])) for rows in moved)
        unique = (table.unique_bytes(ordinals, kinds) for kinds in (READS, _WRITES))
        return ArgumentTraffic(*requested, *unique)

    arguments: dict[str, ArgumentTraffic] = {}
    total = ArgumentTraffic()
    for ordinals in ordinals_by_storage(recording):
        for ordinal in ordinals:
            alone = arguments[spaces[ordinal].name] = traffic([ordinal])
        # Views of one storage may overlap, so the bytes of all of them together are counted again.
        total += alone if len(ordinals) == 1 else traffic(ordinals)
    sectors, requests = _count_sectors(patterns, table.rows)
    loaded, stored = model(recording, table.rows, l2) if l2 else (None, None)
    return LaunchTraffic(
        name=launch.name,
        title=launch.title,
        configuration=launch.configuration,
        grid=recording.grid,
        file=launch.file,
        line=launch.line,
        findings=recording.incidents.findings(launch.title, recording.grid, list(recording.sites)),
        **vars(total),
        dram_loaded=loaded,
        dram_stored=stored,
        sectors=sectors,
        requests=requests,
        atomics=int(lanes[table.rows[kind >= ATOMIC, 2]].sum()),
        programs=recording.program + 1,
        idle=recording.program + 1 - int(np.count_nonzero(np.bincount(program[kind != LOAD]))),
        largest_tile=recording.tiles.largest,
        most_held=recording.tiles.most_held,
        flops=dict(recording.flops.counts),
        tf32_flops=recording.flops.tf32,
        arguments=arguments,
    )


def ordinals_by_storage(recording: Recording) -> list[list[int]]:
    storages: dict[int, list[int]] = {}
    for space in recording.spaces.by_ordinal.values():
        storages.setdefault(space.storage, []).append(space.ordinal)
    return list(storages.values())


def _count_sectors(patterns: list[Pattern], rows: np.ndarray) -> tuple[int, int]:
    """Count (sectors, requests) of all accesses."""
    sectors = 0
    requests = 0
    for (pattern, shift), times in distinct(rows[:, 2], rows[:, 3] % SECTOR_BYTES).items():
        sectors_once, requests_once = patterns[pattern].sectors(shift)
        sectors += times * sectors_once
        requests += times * requests_once
    return sectors, requests


def distinct(pattern: np.ndarray, base: np.ndarray) -> Counter[tuple[int, int]]:
    """Return each distinct (pattern, base), and how often it occurs."""
    return Counter(zip(pattern.tolist(), base.tolist(), strict=True))


def _union(patterns: list[Pattern], rows: np.ndarray) -> int:
    if not len(rows):
        return 0
    places = distinct(rows[:, 2], rows[:, 3])
    window = Window.around(patterns, places)
    if window.units > DENSE_UNITS:
        parts = [patterns[index].places(base - window.start, window.unit) for index, base in places]
        return len(np.unique(np.concatenate(parts))) * window.unit
    touched = np.zeros(window.units, bool)
    for index, base in places:
        patterns[index].mark(touched, base - window.start, unit=window.unit)
    return int(np.count_nonzero(touched)) * window.unit


@dataclass(frozen=True)
class Window:
    """A stretch of one storage that holds some accesses: bytes from `start`, in `units` of `unit` bytes, each of which
    an access touches as a whole or not at all."""

    start: int
    unit: int
    units: int

    @classmethod
    def around(cls, patterns: list[Pattern], places: Collection[tuple[int, int]]) -> "Window":
        start = min(base + patterns[index].low for index, base in places)
        end = max(base + patterns[index].high + patterns[index].itemsize for index, base in places)
        spread = 0
        for index, base in places:
            spread |= patterns[index].granule | (base - start)
        unit = spread & -spread
        return cls(start, unit, (end - start) // unit)
