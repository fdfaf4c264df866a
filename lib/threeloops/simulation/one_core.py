"""Keep two processes that take turns on one core. Waking a process on another core takes several times as long."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["keep_to", "one_core"]


@contextmanager
def one_core() -> Iterator[int]:
    """Keep this thread on one core for a while. Yields the core, or -1 if the system cannot do this."""
    if not hasattr(os, "sched_setaffinity"):
        yield -1
        return
    before = os.sched_getaffinity(0)
    current = _current_core()
    core = current if current in before else min(before)
    os.sched_setaffinity(0, {core})
    try:
        yield core
    finally:
        os.sched_setaffinity(0, before)


def keep_to(core: int) -> set[int]:
    """Keep this thread on `core`, which may be -1 (see `one_core`). Returns the cores that it could use before."""
    if core < 0:
        return set()
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    return before


def _current_core() -> int:
    """Return the core on which this process ran last."""
    with open("/proc/self/stat") as file:
        return int(file.read().rpartition(")")[2].split()[36])
