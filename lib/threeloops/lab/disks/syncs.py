"""A save as plain data, with an fsync at some of its operations, as a record whose crash states can be enumerated."""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from threeloops.training.checkpoint.crash import Record
from threeloops.training.checkpoint.crash import check as load_all_states
from threeloops.training.checkpoint.crash.model.disk import Disk
from threeloops.training.checkpoint.crash.model.operations import (
    Create,
    Entry,
    MakeFolder,
    Operation,
    Rename,
    Saved,
    Sync,
    Write,
)

__all__ = ["BEFORE", "PLACES", "SAVE", "fewest_syncs", "with_syncs"]

_Place = tuple[int, str]
"""An fsync right after the operation with this number, and the path of the file or folder at that moment."""

SAVE: list[tuple[Any, ...]] = [
    ("mkdir", "step-2.tmp"),
    ("create", "step-2.tmp/model"),
    ("write", "step-2.tmp/model", 700),
    ("create", "notes"),
    ("write", "notes", 50),
    ("rename", "step-2.tmp", "step-2"),
]
"""The save of lab 13 that has no fsync yet."""
BEFORE: dict[str, bytes | None] = {"step-1": None, "step-1/model": b"old"}
PLACES: dict[str, _Place] = {
    "made": (0, "."),
    "model": (2, "step-2.tmp/model"),
    "folder": (2, "step-2.tmp"),
    "notes": (4, "notes"),
    "moved": (5, "step-2"),
    "renamed": (5, "."),
}
"""The fsyncs among which a reader of lab 13 chooses, by the names of their boxes."""


def with_syncs(
    operations: Sequence[tuple[Any, ...]], files: Mapping[str, bytes | None], syncs: Iterable[_Place]
) -> Record:
    """Return the record of these operations, with each fsync (position, path) after its operation.

    Args:
        operations: ("mkdir", path), ("create", path), ("write", path, text or number of bytes), ("rename", old, new).
        files: what was on the disk at the start; None for a folder.

    Raises:
        ValueError: there is nothing under the path of an fsync at that moment.
    """
    entries = [Entry(path, number, data) for number, (path, data) in enumerate(files.items(), start=1)]
    record = Record(entries, [])
    made = len(entries)
    chosen = list(syncs)
    for position, operation in enumerate(operations):
        if operation[0] in ("create", "mkdir"):
            made += 1
        record.operations.append(_operation(record, operation, position, made))
        tree = Disk.after(record).tree()
        for place, path in chosen:
            if place == position:
                if path != "." and path not in tree:
                    raise ValueError(f"there is no {path!r} after operation {position}: {sorted(tree)}")
                record.operations.append(Sync(0 if path == "." else tree[path].number, "" if path == "." else path))
    record.operations.append(Saved())
    return record


def _operation(record: Record, operation: tuple[Any, ...], position: int, made: int) -> Operation:
    kind, path, *rest = operation
    if kind == "create":
        return Create(made, path)
    if kind == "mkdir":
        return MakeFolder(made, path)
    if kind == "rename":
        return Rename(path, rest[0])
    file = Disk.after(record).tree()[path]
    data = rest[0].encode() if isinstance(rest[0], str) else random.Random(position + 1).randbytes(rest[0])
    return Write(file.number, path, len(file.latest), data)


def fewest_syncs(
    operations: Sequence[tuple[Any, ...]], files: Mapping[str, bytes | None], load: Any, most: int = 300
) -> list[_Place]:
    """Return fsyncs of which none can be left out: begin with one of everything after the last write and the last
    operation, and drop each that no load misses."""
    last = len(operations) - 1
    candidates: list[_Place] = []
    for position in (last - 1, last):
        tree = Disk.after(with_syncs(operations[: position + 1], files, [])).tree()
        candidates += [(position, path) for path in [*sorted(tree), "."]]
    for candidate in list(candidates):
        others = [other for other in candidates if other != candidate]
        if load_all_states(with_syncs(operations, files, others), load, most=most).ok:
            candidates = others
    return candidates
