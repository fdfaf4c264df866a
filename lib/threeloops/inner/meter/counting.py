"""Count a launch's traffic from its recording."""

from dataclasses import dataclass

import numpy as np

from threeloops.inner.launches import Launch
from threeloops.inner.meter.accesses import SECTOR_BYTES, Pattern, Stretches
from threeloops.inner.meter.l2 import L2, model
from threeloops.inner.meter.recording import ATOMIC, LOAD, STORE, Access, Recording
from threeloops.inner.meter.traffic import ArgumentTraffic, LaunchTraffic

__all__ = ["DENSE_UNITS", "Window", "distinct", "ordinals_by_storage", "rows", "traffic_of", "union"]

DENSE_UNITS = 1 << 26
"""Up to this many units get a flag each. Beyond it, where few units of many are touched, those are sorted."""


def rows(recording: Recording) -> np.ndarray:
    """Return the accesses as int64, one per row, columns as in Access."""
    return np.array(recording.accesses, dtype=np.int64).reshape(-1, len(Access._fields))


def traffic_of(launch: Launch, recording: Recording, table: np.ndarray, l2: L2 | None) -> LaunchTraffic:
    patterns = recording.patterns.all
    spaces = recording.spaces.by_ordinal
    kind = table[:, 0]
    argument = table[:, 1]
    index = table[:, 2]
    program = table[:, 4]
    lanes = np.array([pattern.lanes for pattern in patterns] or [0])
    size = np.array([pattern.bytes for pattern in patterns] or [0])[index]

    def traffic(own: np.ndarray) -> ArgumentTraffic:
        loads = own & (kind != STORE)
        stores = own & (kind != LOAD)
        unique = (union(patterns, table[rows]) for rows in (loads, stores))
        return ArgumentTraffic(int(size[loads].sum()), int(size[stores].sum()), *unique)

    arguments: dict[str, ArgumentTraffic] = {}
    total = ArgumentTraffic()
    for ordinals in ordinals_by_storage(recording):
        for ordinal in ordinals:
            alone = arguments[spaces[ordinal].name] = traffic(argument == ordinal)
        # Views of one storage may overlap, so the bytes of all of them together are counted again.
        total += alone if len(ordinals) == 1 else traffic(np.isin(argument, ordinals))
    sectors, requests = _count_sectors(patterns, table)
    loaded, stored = model(recording, table, l2) if l2 else (None, None)
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
        atomics=int(lanes[index[kind >= ATOMIC]].sum()),
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


def _count_sectors(patterns: list[Pattern], table: np.ndarray) -> tuple[int, int]:
    """Count (sectors, requests) of all accesses."""
    places, times = distinct(table[:, 2], table[:, 3] % SECTOR_BYTES)
    counted = [patterns[pattern].sectors(shift) for pattern, shift in places]
    sectors = sum(n * count for (count, _), n in zip(counted, times, strict=True))
    requests = sum(n * count for (_, count), n in zip(counted, times, strict=True))
    return sectors, requests


def distinct(pattern: np.ndarray, base: np.ndarray) -> tuple[list[tuple[int, int]], list[int]]:
    """Return each distinct (pattern, base) and how often it occurs. Much faster than np.unique over an axis."""
    order = np.lexsort((base, pattern))
    pattern = pattern[order]
    base = base[order]
    first = np.ones(len(pattern), bool)
    first[1:] = (pattern[1:] != pattern[:-1]) | (base[1:] != base[:-1])
    starts = np.flatnonzero(first)
    times = np.diff(starts, append=len(pattern))
    return list(zip(pattern[starts].tolist(), base[starts].tolist(), strict=True)), times.tolist()


def union(patterns: list[Pattern], table: np.ndarray) -> int:
    """Return how many bytes of one storage these accesses touch, each counted once."""
    if not len(table):
        return 0
    stretches = Stretches.of(patterns, table[:, 2], table[:, 3], table[:, 4], exact=True)
    if stretches is not None:
        return stretches.covered
    places, _ = distinct(table[:, 2], table[:, 3])
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
    def around(cls, patterns: list[Pattern], places: list[tuple[int, int]]) -> "Window":
        start = min(base + patterns[index].low for index, base in places)
        end = max(base + patterns[index].high + patterns[index].itemsize for index, base in places)
        spread = 0
        for index, base in places:
            spread |= patterns[index].granule | (base - start)
        unit = spread & -spread
        return cls(start, unit, (end - start) // unit)
