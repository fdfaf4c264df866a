"""Where bytes come from: a store is asked for a key, or for a range of it, and answers with bytes."""

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_NO_SUCH_FILE = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG)


class Store(Protocol):
    """Anything that the formats, the cache and the prefetcher can read from."""

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes of `key` from `offset`, all or `length` of them, fewer where the object ends before.

        Raises KeyError for an unknown key, ValueError for a negative offset or length.
        """
        ...


def require_range(key: str, offset: int, length: int | None) -> None:
    """Raise ValueError for a range that no store serves: a slice and a file read negative numbers differently."""
    for name, value in (("offset", offset), ("length", length)):
        if value is not None and value < 0:
            raise ValueError(f"{name} = {value} of {key}: expected at least 0")


def part(data: bytes, offset: int, length: int | None) -> bytes:
    """The range of an object that is in memory."""
    return data[offset:] if length is None else data[offset : offset + length]


@dataclass(frozen=True)
class MemoryStore:
    """A store in memory: what simulations serve."""

    objects: Mapping[str, bytes]

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        require_range(key, offset, length)
        if key not in self.objects:
            raise KeyError(f"{key}: no such object among {len(self.objects)}")
        return part(self.objects[key], offset, length)


@dataclass(frozen=True)
class FolderStore:
    """The files of a folder; keys are their paths in it, one for each file: no "..", no "./", no "//"."""

    folder: Path

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        require_range(key, offset, length)
        unknown = KeyError(f"{key}: no such file in {self.folder}")
        if "\0" in key or not {"", ".", ".."}.isdisjoint(key.split("/")):
            raise unknown
        try:
            with (self.folder / key).open("rb") as file:
                file.seek(offset)
                return file.read() if length is None else file.read(length)
        except OSError as error:
            if error.errno not in _NO_SUCH_FILE:
                raise
            raise unknown from None
