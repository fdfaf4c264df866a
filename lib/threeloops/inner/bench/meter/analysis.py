"""From the rows of a recording to its traffic."""

from dataclasses import dataclass

import numpy as np

from threeloops.inner.bench.meter.patterns import SECTOR_BYTES, Pattern
from threeloops.inner.bench.meter.recorder import ATOMIC, LOAD, STORE, Access, Recording
from threeloops.inner.bench.meter.traffic import ArgumentTraffic

COLUMNS = len(Access._fields)
DENSE_UNITS = 1 << 26
"""Up to here a flag for every unit; beyond, where a kernel picks a little out of a lot, the touched ones are sorted."""


@dataclass
class Counts:
    """What a launch's traffic is made of, apart from names and the L2 model."""

    arguments: dict[str, ArgumentTraffic]
    unique_loaded: int
    unique_stored: int
    sectors: int
    requests: int
    atomics: int


def rows(recording: Recording) -> np.ndarray:
    """The accesses as int64, a row each, columns as in Access."""
    return np.array(recording.accesses, dtype=np.int64).reshape(-1, COLUMNS)


def count(recording: Recording, table: np.ndarray) -> Counts:
    patterns = recording.patterns.all
    kind, argument, pattern = table[:, 0], table[:, 1], table[:, 2]
    lanes = np.array([each.lanes for each in patterns] or [0])
    size = np.array([each.bytes for each in patterns] or [0])[pattern]
    sectors, requests = count_sectors(patterns, table)
    arguments, unique = {}, {}
    spaces = recording.spaces.by_ordinal
    for storage in {space.storage for space in spaces.values()}:
        views = [space for space in spaces.values() if space.storage == storage]
        for space in views:
            own = argument == space.ordinal
            loads, stores = own & (kind != STORE), own & (kind != LOAD)
            arguments[space.name] = ArgumentTraffic(
                int(size[loads].sum()),
                int(size[stores].sum()),
                union(patterns, table[loads]),
                union(patterns, table[stores]),
            )
        if len(views) == 1:
            alone = arguments[views[0].name]
            unique[storage] = (alone.unique_loaded, alone.unique_stored)
        else:
            own = np.isin(argument, [space.ordinal for space in views])
            loads, stores = own & (kind != STORE), own & (kind != LOAD)
            unique[storage] = union(patterns, table[loads]), union(patterns, table[stores])
    return Counts(
        arguments,
        sum(loaded for loaded, _ in unique.values()),
        sum(stored for _, stored in unique.values()),
        sectors,
        requests,
        int(lanes[pattern[kind >= ATOMIC]].sum()),
    )


def count_sectors(patterns: list[Pattern], table: np.ndarray) -> tuple[int, int]:
    places, times = distinct(table[:, 2], table[:, 3] % SECTOR_BYTES)
    counted = [patterns[pattern].sectors(shift) for pattern, shift in places]
    sectors = sum(n * each for (each, _), n in zip(counted, times, strict=True))
    requests = sum(n * each for (_, each), n in zip(counted, times, strict=True))
    return sectors, requests


def distinct(pattern: np.ndarray, base: np.ndarray) -> tuple[list[tuple[int, int]], list[int]]:
    """Each distinct (pattern, base) and how often it occurs."""
    order = np.lexsort((base, pattern))
    pattern, base = pattern[order], base[order]
    first = np.ones(len(pattern), bool)
    first[1:] = (pattern[1:] != pattern[:-1]) | (base[1:] != base[:-1])
    starts = np.flatnonzero(first)
    times = np.diff(np.append(starts, len(pattern)))
    return list(zip(pattern[starts].tolist(), base[starts].tolist(), strict=True)), times.tolist()


def union(patterns: list[Pattern], table: np.ndarray) -> int:
    """How many bytes of one storage these accesses touch, each counted once."""
    if not len(table):
        return 0
    places, _ = distinct(table[:, 2], table[:, 3])
    window = Window.around(patterns, places)
    if window.units > DENSE_UNITS:
        parts = [patterns[index].places(base - window.start, window.unit) for index, base in places]
        ordered = np.sort(np.concatenate(parts))
        return (1 + int(np.count_nonzero(np.diff(ordered)))) * window.unit
    touched = np.zeros(window.units, bool)
    for index, base in places:
        patterns[index].mark(touched, base - window.start, unit=window.unit)
    return int(np.count_nonzero(touched)) * window.unit


@dataclass(frozen=True)
class Window:
    """A stretch of one storage that holds some accesses: bytes from `start`, in `units` of `unit` bytes none of which
    they touch partly."""

    start: int
    unit: int
    units: int

    @classmethod
    def around(cls, patterns: list[Pattern], places: list[tuple[int, int]]) -> "Window":
        start = min(base + patterns[index].low for index, base in places)
        end = max(base + patterns[index].high + patterns[index].itemsize for index, base in places)
        spread = 0
        for index, base in places:
            spread |= patterns[index].granule | (base - start)
        unit = spread & -spread
        return cls(start, unit, (end - start) // unit)
