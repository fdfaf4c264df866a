"""Times at which files last changed, by the kernel's clock. They reveal changes that the recorder did not see.

Comparing contents is not enough: native code may write the same bytes again, and they are unsynced all the same.
"""

import os
import time
from collections.abc import Iterator

__all__ = ["Stamps", "changed_since", "next_tick"]

_COARSE = 5
"""CLOCK_REALTIME_COARSE of Linux, which Python does not name: the clock that stamps files."""


class Stamps:
    """The size and the times of each file and folder after its last recorded operation, by its number in the record."""

    def __init__(self) -> None:
        self._expected: dict[int, tuple[int, int, int]] = {}
        self.changed = dict[int, str]()
        """Files that changed outside of the record, with the path under which that was noticed."""

    def note(self, number: int, status: os.stat_result) -> None:
        self._expected[number] = _stamp(status)

    def forget(self, number: int) -> None:
        """Expect nothing of a file from here on: its times change with names that are not followed."""
        self._expected.pop(number, None)

    def compare(self, number: int, status: os.stat_result, path: str) -> None:
        if self._expected.get(number, _stamp(status)) != _stamp(status):
            self.changed.setdefault(number, path)


def next_tick() -> int:
    """Wait a few milliseconds, until the clock that stamps files has passed the present, and return its time in ns.
    Changes after it have later stamps than changes before it."""
    # not its next step: Linux 6.13 and later also stamp by the fine clock, which may be ahead of a step that is late
    before = time.time_ns()
    while (now := time.clock_gettime_ns(_COARSE)) <= before:
        time.sleep(0)
    return now


def changed_since(path: str, moment: int) -> bool:
    """Check whether a file, or anything in a folder, changed since then. A path that leads nowhere did not change."""
    return os.path.lexists(path) and any(os.lstat(entry).st_ctime_ns >= moment for entry in _tree(path))


def _tree(path: str) -> Iterator[str]:
    yield path
    for folder, folders, files in os.walk(path):
        yield from (os.path.join(folder, name) for name in folders + files)


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
