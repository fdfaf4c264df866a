"""Stores: ask one for a key, and it answers with bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = ["MemoryStore", "Store"]


class Store(Protocol):
    """Anything that the cache and the simulated stores can read from."""

    def get(self, key: str) -> bytes:
        """All bytes of an object. Raises KeyError for an unknown key."""
        ...


@dataclass(frozen=True)
class MemoryStore:
    """A store in memory."""

    objects: Mapping[str, bytes]

    def get(self, key: str) -> bytes:
        if key not in self.objects:
            raise KeyError(f"{key}: no such object among {len(self.objects)}")
        return self.objects[key]
