"""Locate a user's files, write files completely or not at all, and list all of them or fail."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

__all__ = ["RECORD", "base_folder", "below", "record_folder", "replace_text", "replacing", "sync"]

RECORD = "progress.json"
"""The file in `record_folder` that holds a learner's passed checks and predictions."""
_BASES = {"cache": "~/.cache", "data": "~/.local/share", "state": "~/.local/state"}


def base_folder(kind: Literal["cache", "data", "state"]) -> Path:
    """A base folder of this user by the XDG Base Directory Specification, such as `$XDG_STATE_HOME`.

    The specification asks programs to ignore a relative path in the variable. Raises RuntimeError if the default is
    needed and there is no home folder.
    """
    named = Path(os.environ.get(f"XDG_{kind.upper()}_HOME", ""))
    return named if named.is_absolute() else Path(_BASES[kind]).expanduser()


def record_folder() -> Path:
    """The folder of a learner's record: `$THREELOOPS_HOME`, else `threeloops` in `$XDG_STATE_HOME` or `~/.local/state`.

    Releases that did not know XDG_STATE_HOME wrote to `~/.local/state`. A record there is used until there is another.
    Raises RuntimeError as `base_folder` does.
    """
    if named := os.environ.get("THREELOOPS_HOME"):
        return Path(named).expanduser()
    folder, before = (base / "threeloops" for base in (base_folder("state"), Path(os.path.expanduser(_BASES["state"]))))
    return before if (before / RECORD).exists() and not (folder / RECORD).exists() else folder


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """An open file that becomes `path` when the block ends, so that nobody sees half of it, even after a crash.

    If the block raises, `path` stays as it was. A process that has the old file open or mapped keeps its contents.

    Raises:
        FileExistsError: `path` is a folder, a device or a pipe. (Root could replace even /dev/null.)
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "not an ordinary file", str(path))
    half = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with half.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, completely or not at all."""
    with replacing(path) as stream:
        stream.write(text.encode())


def sync(path: Path) -> None:
    """Put a file's contents, or a folder's entries, on the disk: what a power cut cannot take back."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def below(folder: Path) -> list[Path]:
    """All files and folders below `folder`, sorted; none if there is no such folder.

    Raises OSError if one of the folders cannot be listed. `Path.rglob` leaves it out instead, from Python 3.13 on.
    """

    def fail(error: OSError) -> None:
        raise error

    levels = os.walk(folder, onerror=fail) if folder.exists() else ()
    return sorted(Path(parent, name) for parent, folders, files in levels for name in (*folders, *files))
