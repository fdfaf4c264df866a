"""Where bytes come from: a store is asked for a key, or for a range of it, and answers with bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """Anything that the formats, the cache and the prefetcher can read from."""

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes of `key` from `offset`, all or `length` of them. Raises KeyError for an unknown key."""
        ...


@dataclass(frozen=True)
class MemoryStore:
    """A store in memory: what simulations serve."""

    objects: Mapping[str, bytes]

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        if key not in self.objects:
            raise KeyError(f"{key}: no such object among {len(self.objects)}")
        data = self.objects[key]
        return data[offset:] if length is None else data[offset : offset + length]


@dataclass(frozen=True)
class FolderStore:
    """The files of a folder; keys are their paths in it."""

    folder: Path

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        try:
            with (self.folder / key).open("rb") as file:
                file.seek(offset)
                return file.read() if length is None else file.read(length)
        except (FileNotFoundError, IsADirectoryError):
            raise KeyError(f"{key}: no such file in {self.folder}") from None
