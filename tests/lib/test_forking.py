"""What a process does before it forks changes nothing of it, and makes its forks small."""

import ctypes
import gc
import mmap
import os
import re
from pathlib import Path

import numpy as np
import pytest
from threeloops.forking import prepare_to_fork

MIB = 1 << 20


def filled(size: int) -> mmap.mmap:
    """Memory in pages of 4 KiB. (An array's would be in huge ones: NumPy asks for them.)"""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(bytes(range(256)) * (size // 256))
    return memory


def can_collapse() -> bool:
    """Whether this kernel makes huge pages of memory that it is asked to."""
    try:
        filled(4 * MIB).madvise(25, 0, 4 * MIB)
    except OSError:
        return False
    return True


def huge_bytes() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"AnonHugePages:\s+(\d+) kB", text)[1]) << 10


@pytest.fixture
def unfrozen():
    """The objects of this test process are collected again afterwards."""
    yield
    gc.unfreeze()


def test_memory_moves_into_huge_pages_and_holds_what_it_held(unfrozen):
    memory = filled(64 * MIB)
    before = huge_bytes() if can_collapse() else None
    prepare_to_fork()
    prepare_to_fork()
    assert memory[:] == bytes(range(256)) * (64 * MIB // 256)
    if before is not None:
        assert huge_bytes() > before  # how much more depends on how fragmented the machine's memory is


def test_what_is_there_is_kept_out_of_collections_and_what_comes_is_not(unfrozen):
    here = [[] for _ in range(1000)]
    prepare_to_fork()
    assert gc.get_freeze_count() >= len(here)
    cycle = []
    cycle.append(cycle)
    del cycle
    assert gc.collect() >= 1


def test_a_fork_may_write_to_shared_pages(unfrozen):
    values = np.zeros(8 * MIB // 8)
    prepare_to_fork()
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        values += 1
        os.write(theirs, values[:1].tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert np.frombuffer(os.read(ours, 8))[0] == 1
    assert not values.any()
    os.close(ours)
    os.close(theirs)


def test_without_maps_of_its_memory_only_the_collector_is_told(monkeypatch, unfrozen):
    monkeypatch.setattr(Path, "exists", lambda self: False)
    monkeypatch.setattr(ctypes, "CDLL", None)
    prepare_to_fork()
    assert gc.get_freeze_count() > 0
