"""A launch's accesses as a cache sees them: lines, and the sectors within each."""

from dataclasses import dataclass

import numpy as np

from threeloops.inner.bench.meter.patterns import Pattern
from threeloops.inner.bench.meter.recorder import Recording

STORAGE_ALIGNMENT = 512
"""Of CUDA's caching allocator in PyTorch."""


@dataclass(frozen=True)
class Stream:
    """Accesses to lines in time order: line number, sectors touched and sectors wholly covered (a bit each), kind."""

    lines: np.ndarray
    touched: np.ndarray
    covered: np.ndarray
    kinds: np.ndarray


def stream(recorded: Recording, table: np.ndarray, line_bytes: int, sector_bytes: int) -> Stream:
    """The lines of every access, in ascending order within one."""
    starts = storage_starts(recorded)
    base = table[:, 3] + np.array([starts.get(argument, 0) for argument in range(max(starts) + 1)])[table[:, 1]]
    line, within = np.divmod(base, line_bytes)
    keys, which = np.unique(table[:, 2] * line_bytes + within, return_inverse=True)
    parts = [
        lines_of(recorded.patterns.all[key // line_bytes], key % line_bytes, line_bytes, sector_bytes)
        for key in keys.tolist()
    ]
    lengths = np.array([len(lines) for lines, _, _ in parts])
    begins = np.cumsum(lengths) - lengths
    counts = lengths[which]
    # For every access the stretch of the pool that is its pattern's, one after the other.
    take = np.arange(counts.sum()) + np.repeat(begins[which] - (np.cumsum(counts) - counts), counts)
    lines, touched, covered = (np.concatenate(pool) for pool in zip(*parts, strict=True))
    return Stream(lines[take] + np.repeat(line, counts), touched[take], covered[take], np.repeat(table[:, 0], counts))


def storage_starts(recorded: Recording) -> dict[int, int]:
    """By argument: where its storage starts in the model's memory."""
    ends: dict[int, int] = {}
    place, starts = 0, {}
    for space in sorted(recorded.spaces.by_ordinal.values(), key=lambda space: space.ordinal or 1 << 20):
        if space.storage not in ends:
            ends[space.storage] = place
            place += -(-(space.end - space.zero) // STORAGE_ALIGNMENT) * STORAGE_ALIGNMENT
        starts[space.ordinal] = ends[space.storage]
    return starts


def lines_of(
    pattern: Pattern, within: int, line_bytes: int, sector_bytes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(line, touched, covered) for a pattern whose base lies `within` bytes into line 0."""
    offsets, width = runs(np.sort(pattern.active))[0] + within, pattern.itemsize
    if (pattern.granule | within) % width or width > sector_bytes:
        # Items that may straddle sectors count as bytes.
        offsets, width = runs(np.sort((offsets[:, None] + np.arange(width)).reshape(-1)))[0], 1
    sectors, counts = runs(offsets // sector_bytes)
    line, place = np.divmod(sectors, line_bytes // sector_bytes)
    bit = np.left_shift(1, place).astype(np.uint8)
    covered = np.where(counts * width >= sector_bytes, bit, 0).astype(np.uint8)
    lines, lengths = runs(line)
    first = np.cumsum(lengths) - lengths
    return lines, np.bitwise_or.reduceat(bit, first), np.bitwise_or.reduceat(covered, first)


def runs(ascending: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values of a sorted array, and how often each occurs."""
    new = np.ones(len(ascending), bool)
    np.not_equal(ascending[1:], ascending[:-1], out=new[1:])
    first = np.flatnonzero(new)
    return ascending[first], np.diff(first, append=len(ascending))
