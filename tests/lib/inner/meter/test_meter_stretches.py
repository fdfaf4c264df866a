"""Stretches of bytes against sets of bytes: what they cover, and whether programs keep apart."""

import random

import numpy as np
import pytest
from threeloops.inner.meter.accesses import Patterns, Stretches, apart


def accesses(count, programs, seed):
    """(pattern, base, program) of random accesses: rows, tiles, and single bytes far apart."""
    draw, patterns, table = random.Random(seed), Patterns(), []
    shapes = [np.arange(8), np.arange(3), np.array([[0], [20]]) + np.arange(8), np.arange(16) * 3, np.zeros(16, int)]
    for _ in range(count):
        tile = draw.choice(shapes).astype(np.uint64) + np.uint64(draw.randrange(0, 200, 4))
        pattern, base = patterns.find(tile, None, 1, site=0)
        table.append((pattern.index, base, draw.randrange(programs)))
    return patterns.all, np.array(table)


def stretches(patterns, table, *, exact):
    return Stretches.of(patterns, table[:, 0], table[:, 1], table[:, 2], exact=exact)


def bytes_by_program(patterns, table):
    touched = {}
    for index, base, program in table.tolist():
        touched.setdefault(program, set()).update((patterns[index].active + base).tolist())
    return touched


@pytest.mark.parametrize("seed", range(60))
def test_bytes_of_many_stretches_are_counted_once(seed):
    patterns, table = accesses(6, 3, seed)
    found = stretches(patterns, table, exact=True)
    if any(patterns[index].spans is None for index in table[:, 0]):
        assert found is None, "16 bytes that touch nowhere are too many stretches"
    else:
        assert found.covered == len(set.union(*bytes_by_program(patterns, table).values()))


@pytest.mark.parametrize("seed", range(200))
def test_programs_that_keep_apart_share_no_stored_byte(seed):
    patterns, table = accesses(random.Random(seed).randrange(2, 5), 2, seed)
    stored, others = table[:-1], table[-1:]
    said = apart(stretches(patterns, stored, exact=False), stretches(patterns, others, exact=False))
    theirs = bytes_by_program(patterns, others)
    mine = bytes_by_program(patterns, stored)
    pairs = [(one, other) for one in mine for other in {*mine, *theirs} if one != other]
    share = any(mine[one] & (mine.get(other, set()) | theirs.get(other, set())) for one, other in pairs)
    assert not (said and share)
    if all(patterns[index].spans is not None for index in table[:, 0]):
        assert said == (not share), "with exact stretches the answer is exact"


def test_an_access_beside_those_of_another_program_does_not_meet_them():
    patterns = Patterns()
    row, _ = patterns.find(np.arange(8, dtype=np.uint64), None, 1, site=0)
    stored = stretches(patterns.all, np.array([[row.index, 0, 0], [row.index, 8, 1]]), exact=False)
    assert apart(stored, None)
    assert apart(stored, stretches(patterns.all, np.array([[row.index, 16, 0], [row.index, 8, 1]]), exact=False))
    assert not apart(stored, stretches(patterns.all, np.array([[row.index, 7, 1]]), exact=False))
