"""Where bytes come from: a store is asked for a key, or for a range of it, and answers with bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = ["MemoryStore", "Store", "part", "require_range"]


class Store(Protocol):
    """Anything that the cache and the simulated stores can read from."""

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """`length` bytes of `key` from `offset` on, fewer where the object ends before; by default all of them.

        Raises KeyError for an unknown key, ValueError for a negative offset or length.
        """
        ...


def require_range(key: str, offset: int, length: int | None) -> None:
    """Raise ValueError for negative numbers, which a slice and a file read interpret differently."""
    for name, value in (("offset", offset), ("length", length)):
        if value is not None and value < 0:
            raise ValueError(f"{name} = {value} of {key}: expected at least 0")


def part(data: bytes, offset: int, length: int | None) -> bytes:
    """The range of an object that is in memory."""
    return data[offset:] if length is None else data[offset : offset + length]


@dataclass(frozen=True)
class MemoryStore:
    """A store in memory."""

    objects: Mapping[str, bytes]

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        require_range(key, offset, length)
        if key not in self.objects:
            raise KeyError(f"{key}: no such object among {len(self.objects)}")
        return part(self.objects[key], offset, length)
