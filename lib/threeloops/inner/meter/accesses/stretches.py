"""Stretches of bytes that accesses touch.

Most accesses touch a few contiguous stretches, such as a row, or the rows of a tile. The stretches of a launch answer
two questions: how many bytes the accesses cover together, and whether programs touch bytes that other programs store.
Sorting the stretches answers both without a flag for every byte. Bytes are counted from the start of one storage.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from threeloops.inner.meter.accesses.patterns import Pattern

__all__ = ["Stretches", "apart"]


@dataclass(frozen=True)
class Stretches:
    """Stretches of bytes from `starts` to `ends` (exclusive), ordered by start.

    `programs` holds the program whose access touches each stretch.
    """

    starts: np.ndarray
    ends: np.ndarray
    programs: np.ndarray

    @classmethod
    def of(
        cls, patterns: Sequence[Pattern], pattern: np.ndarray, base: np.ndarray, program: np.ndarray, *, exact: bool
    ) -> "Stretches | None":
        """Collect the stretches of some accesses.

        A pattern with too many stretches to list counts as one stretch that holds them all. With `exact`, the result is
        None if an access has such a pattern.
        """
        parts = []
        for own in _alike(pattern):
            known = patterns[int(pattern[own[0]])]
            if exact and known.spans is None:
                return None
            spans = known.spans or known.hull
            starts, ends = (np.add.outer(base[own], bound).ravel() for bound in spans)
            parts.append((starts, ends, np.repeat(program[own], len(spans[0]))))
        starts, ends, programs = (
            parts[0] if len(parts) == 1 else [np.concatenate(column) for column in zip(*parts, strict=True)]
        )
        if len(starts) > 1:
            order = np.argsort(starts, kind="stable")
            starts, ends, programs = (each[order] for each in (starts, ends, programs))
        return cls(starts, ends, programs)

    @property
    def covered(self) -> int:
        """Count the bytes that lie in at least one stretch."""
        reach = np.maximum.accumulate(self.ends)
        fresh = self.ends - self.starts
        fresh[1:] = reach[1:] - np.maximum(self.starts[1:], reach[:-1])
        return int(np.add.reduce(fresh))


def _alike(pattern: np.ndarray) -> list[np.ndarray]:
    """Return the places of each pattern."""
    if (pattern == pattern[0]).all():
        return [np.arange(len(pattern))]
    order = np.argsort(pattern, kind="stable")
    ordered = pattern[order]
    changes = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    return np.split(order, changes)


def apart(stores: Stretches, others: Stretches | None) -> bool:
    """Check that no program stores bytes that another program stores, or that another program touches in `others`."""
    reach = np.maximum.accumulate(stores.ends)
    new = np.ones(len(reach), bool)
    new[1:] = stores.starts[1:] >= reach[:-1]
    changes = np.zeros(len(reach), bool)
    changes[1:] = stores.programs[1:] != stores.programs[:-1]
    if (changes & ~new).any():
        return False
    if others is None:
        return True
    # Overlapping stores now belong to the same program, so each group of them can be treated as one stretch.
    first = np.flatnonzero(new)
    starts = stores.starts[first]
    ends = reach[np.append(first[1:], len(reach)) - 1]
    programs = stores.programs[first]
    low = np.searchsorted(ends, others.starts, "right")
    high = np.searchsorted(starts, others.ends, "left")
    meets = np.flatnonzero(low < high)
    low = low[meets]
    high = high[meets] - 1
    owners = np.cumsum(np.append(False, programs[1:] != programs[:-1]))
    return bool(((programs[low] == others.programs[meets]) & (owners[low] == owners[high])).all())
