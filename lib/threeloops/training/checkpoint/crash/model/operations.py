"""The record of a save: its requests to the file system, in order and as plain data, so that they may cross a wall.

Paths are relative to the recorded folder, use "/", and are valid when their operation happens. A file or a folder also
has a number, its inode, because a name may later refer to another file. A write or an fsync concerns the file, not its
name.
"""

from typing import Annotated

import msgspec

__all__ = [
    "MOST_BYTES",
    "ROOT",
    "BadRecord",
    "Create",
    "Entry",
    "HardLink",
    "MakeFolder",
    "MakeLink",
    "Operation",
    "Record",
    "Remove",
    "RemoveFolder",
    "Rename",
    "Saved",
    "Sync",
    "SyncAll",
    "Truncate",
    "Write",
    "operation_from_bytes",
    "paths",
]

ROOT = 0
"""The recorded folder itself."""
MOST_BYTES = 256 << 20
"""The largest size of all files of a disk together, and so of one operation that comes from outside."""

_Path = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]


class BadRecord(ValueError):
    """A record that no save can have left."""


class _Operation(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)


class Create(_Operation, frozen=True):
    """A new, empty file. Without a path it has no name yet (O_TMPFILE)."""

    file: _Number
    path: _Path | None

    def __str__(self) -> str:
        return f"create {self.path}" if self.path else "create a file without a name"


class MakeFolder(_Operation, frozen=True):
    folder: _Number
    path: _Path

    def __str__(self) -> str:
        return f"mkdir {self.path}"


class MakeLink(_Operation, frozen=True):
    """A symbolic link."""

    link: _Number
    path: _Path
    target: Annotated[str, msgspec.Meta(max_length=1024)]

    def __str__(self) -> str:
        return f"symlink {self.path} → {self.target}"


class Write(_Operation, frozen=True):
    """A write. `path` is the file's name in messages: the name under which it was opened."""

    file: _Number
    path: _Path
    offset: _Size
    data: bytes

    def __str__(self) -> str:
        return f"write {len(self.data)} bytes of {self.path} at {self.offset}"


class Truncate(_Operation, frozen=True):
    """A new size: bytes beyond it are cut off, and missing bytes are zeros."""

    file: _Number
    path: _Path
    size: _Size

    def __str__(self) -> str:
        return f"truncate {self.path} to {self.size} bytes"


class Sync(_Operation, frozen=True):
    """fsync of a file or a folder. `data_only` is fdatasync."""

    inode: _Number
    path: Annotated[str, msgspec.Meta(max_length=1024)]
    data_only: bool = False

    def __str__(self) -> str:
        return f"{'fdatasync' if self.data_only else 'fsync'} {self.path or 'the folder'}"


class SyncAll(_Operation, frozen=True):
    def __str__(self) -> str:
        return "sync"


class Rename(_Operation, frozen=True):
    """A rename, including one that replaces a file or an empty folder."""

    old: _Path
    new: _Path

    def __str__(self) -> str:
        return f"rename {self.old} → {self.new}"


class HardLink(_Operation, frozen=True):
    """Another name for a file."""

    file: _Number
    path: _Path

    def __str__(self) -> str:
        return f"link {self.path}"


class Remove(_Operation, frozen=True):
    path: _Path

    def __str__(self) -> str:
        return f"unlink {self.path}"


class RemoveFolder(_Operation, frozen=True):
    path: _Path

    def __str__(self) -> str:
        return f"rmdir {self.path}"


class Saved(_Operation, frozen=True):
    """The return of a save: from here on only its value may be loaded. Nothing happens on the disk."""

    def __str__(self) -> str:
        return "the save returned"


Operation = (
    Create
    | MakeFolder
    | MakeLink
    | Write
    | Truncate
    | Sync
    | SyncAll
    | Rename
    | HardLink
    | Remove
    | RemoveFolder
    | Saved
)


def paths(operation: "Operation | Entry") -> list[str]:
    """List the paths that an operation or an entry names."""
    return [path for name in ("path", "old", "new") if (path := getattr(operation, name, None))]


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """An entry of a folder before the record, under one name: a file with `data`, a symbolic link with `target`, or a
    folder with neither. Hard links have the same `inode`."""

    path: _Path
    inode: _Number
    data: bytes | None = None
    target: str | None = None


class Record(msgspec.Struct, array_like=True):
    """The contents of a folder, all on the disk, and the operations since then. Entries come after their folder."""

    start: list[Entry]
    operations: list[Operation]


def operation_from_bytes(data: object) -> Operation:
    """Decode an operation from an untrusted process. Checks types, sizes and paths. `Disk` checks that it is possible.

    Raises:
        BadRecord: a type, a size or a path is wrong.
    """
    if type(data) is not bytes or len(data) > MOST_BYTES:
        raise BadRecord(f"an operation in a {type(data).__name__}: expected at most {MOST_BYTES} bytes")
    try:
        operation = _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError, MemoryError) as error:
        raise BadRecord(f"this is not an operation: {error}") from None
    for path in paths(operation):
        if not _is_inside(path):
            raise BadRecord(f"the path {path!r}: expected names inside the folder, with single / between them")
    if isinstance(operation, Saved):
        raise BadRecord("only a test says that a save has returned")
    return operation


_DECODER = msgspec.msgpack.Decoder(Operation)


def _is_inside(path: str) -> bool:
    return "\0" not in path and all(part not in ("", ".", "..") for part in path.split("/"))
