"""Stretches of bytes that accesses touch: what they cover together, and whether programs keep apart.

Most accesses touch a few contiguous stretches, such as a row, or the rows of a tile. Sorting those of a whole launch
answers both questions without a flag for every byte. Bytes are counted from the start of one storage.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from threeloops.inner.meter.accesses.patterns import Pattern

__all__ = ["Stretches", "apart"]


@dataclass(frozen=True)
class Stretches:
    """From `starts` to `ends` (exclusive), ordered by start. `programs`: whose access it is."""

    starts: np.ndarray
    ends: np.ndarray
    programs: np.ndarray

    @classmethod
    def of(
        cls, patterns: Sequence[Pattern], pattern: np.ndarray, base: np.ndarray, program: np.ndarray, *, exact: bool
    ) -> "Stretches | None":
        """Those of some accesses. A pattern of many stretches is taken for a single one that holds them all or, if
        they must be `exact`, gives None."""
        parts = []
        order = np.argsort(pattern, kind="stable")
        for own in np.split(order, np.flatnonzero(np.diff(pattern[order])) + 1):
            known = patterns[int(pattern[own[0]])]
            if exact and known.spans is None:
                return None
            spans = known.spans or known.hull
            starts, ends = (np.add.outer(base[own], bound) for bound in spans)
            parts.append((starts.ravel(), ends.ravel(), np.repeat(program[own], len(spans[0]))))
        starts, ends, programs = (
            parts[0] if len(parts) == 1 else [np.concatenate(column) for column in zip(*parts, strict=True)]
        )
        order = np.argsort(starts, kind="stable")
        return cls(starts[order], ends[order], programs[order])

    @property
    def covered(self) -> int:
        """How many bytes lie in at least one stretch."""
        reach = np.maximum.accumulate(self.ends)
        fresh = self.ends.copy()
        fresh -= self.starts
        fresh[1:] = self.ends[1:] - np.maximum(self.starts[1:], reach[:-1])
        return int(fresh[fresh > 0].sum())


def apart(stores: Stretches, others: Stretches | None) -> bool:
    """Whether no program stores bytes that another one stores, or that another one touches in `others`."""
    reach = np.maximum.accumulate(stores.ends)
    new = np.ones(len(reach), bool)
    new[1:] = stores.starts[1:] >= reach[:-1]
    changes = np.zeros(len(reach), bool)
    changes[1:] = stores.programs[1:] != stores.programs[:-1]
    if (changes & ~new).any():
        return False
    if others is None:
        return True
    # Stretches that overlap belong to one program now: look at each such group as a whole.
    first = np.flatnonzero(new)
    starts, ends, programs = stores.starts[first], reach[np.append(first[1:], len(reach)) - 1], stores.programs[first]
    low, high = np.searchsorted(ends, others.starts, "right"), np.searchsorted(starts, others.ends, "left")
    meets = np.flatnonzero(low < high)
    low, high = low[meets], high[meets] - 1
    owners = np.cumsum(np.append(False, programs[1:] != programs[:-1]))
    return bool(((programs[low] == others.programs[meets]) & (owners[low] == owners[high])).all())
