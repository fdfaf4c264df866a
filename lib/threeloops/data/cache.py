"""A local cache in front of a slow store: bounded bytes, least recently used out first, never half a file.

An entry is written beside its place and renamed into it, so a reader, or the next process, sees all of it or nothing.
It begins with the CRC32C of its contents: an entry that a crash or a disk has damaged counts as missing.
"""

import hashlib
import os
import struct
import threading
from collections import OrderedDict
from pathlib import Path

from threeloops.data.crc32c import crc32c
from threeloops.data.store import Store

_CRC = struct.Struct("<I")
_SUFFIX, _UNFINISHED = ".cached", ".unfinished"


class CachedStore:
    """`store`, with at most `limit_bytes` of whole objects kept in `folder`, the bytes of their CRCs included.

    Counts `hits`, `misses` and `evictions`. Objects larger than the limit pass through. Threads may share it; two that
    miss the same key at once both fetch it. The order of use survives a restart as the files' modification times.
    """

    def __init__(self, store: Store, folder: Path, limit_bytes: int) -> None:
        if limit_bytes < 0:
            raise ValueError(f"limit_bytes = {limit_bytes}: expected at least 0")
        self.store, self.folder, self.limit_bytes = store, Path(folder), limit_bytes
        self.hits = self.misses = self.evictions = 0
        self._lock, self._writes = threading.Lock(), 0
        self.folder.mkdir(parents=True, exist_ok=True)
        for left_over in self.folder.glob("*" + _UNFINISHED):
            left_over.unlink(missing_ok=True)
        found = sorted((p.stat().st_mtime_ns, p.name, p.stat().st_size) for p in self.folder.glob("*" + _SUFFIX))
        self._sizes = OrderedDict((name, size) for _, name, size in found)
        self._make_room(0)

    @property
    def stored_bytes(self) -> int:
        """On disk now."""
        return sum(self._sizes.values())

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self._read(key)
        if data is None:
            self.misses += 1
            data = self.store.get(key)
            self._write(key, data)
        return data[offset:] if length is None else data[offset : offset + length]

    def _read(self, key: str) -> bytes | None:
        name = _file_name(key)
        with self._lock:
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
        try:
            raw = (self.folder / name).read_bytes()
            os.utime(self.folder / name)
        except FileNotFoundError:
            raw = b""
        if len(raw) < _CRC.size or _CRC.unpack_from(raw)[0] != crc32c(raw[_CRC.size :]):
            with self._lock:
                self._drop(name)
            return None
        self.hits += 1
        return raw[_CRC.size :]

    def _write(self, key: str, data: bytes) -> None:
        size = _CRC.size + len(data)
        if size > self.limit_bytes:
            return
        name = _file_name(key)
        with self._lock:
            self._writes += 1
            unfinished = self.folder / f"{name}.{os.getpid()}-{self._writes}{_UNFINISHED}"
            self._drop(name)
            self._make_room(size)
            unfinished.write_bytes(_CRC.pack(crc32c(data)) + data)
            os.replace(unfinished, self.folder / name)
            self._sizes[name] = size

    def _make_room(self, size: int) -> None:
        while self._sizes and self.stored_bytes + size > self.limit_bytes:
            self._drop(next(iter(self._sizes)))
            self.evictions += 1

    def _drop(self, name: str) -> None:
        if self._sizes.pop(name, None) is not None:
            (self.folder / name).unlink(missing_ok=True)


def _file_name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32] + _SUFFIX
