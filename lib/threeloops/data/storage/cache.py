"""A local cache in front of a slow store: a bounded number of bytes, the least recently used objects evicted first.

An entry is written under another name and then renamed, so that readers see all of it or nothing. It begins with the
CRC32C of its contents; a damaged entry counts as missing. When the folder cannot be read or written, the data come from
the store.
"""

import fcntl
import hashlib
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from threeloops.data.formats.crc32c import crc32c
from threeloops.data.storage.store import Store

__all__ = ["CachedStore"]

_CRC = struct.Struct("<I")
_SUFFIX = ".cached"
_UNFINISHED = ".unfinished"
_NUMBERS = count(1)  # one for each entry that this process writes, for whichever cache


class CachedStore:
    """`store`, with whole objects kept in `folder`: at most `limit_bytes`, including their CRCs.

    Larger objects, and objects that cannot be written, are returned and not kept. `hits`, `misses` and `evictions`
    count. Threads may share a cache. Two that miss the same key at once both fetch it. Processes may share the folder.
    Each applies the limit to what it found there and what it wrote. The order of use survives as modification times.
    """

    def __init__(self, store: Store, folder: Path, limit_bytes: int) -> None:
        if limit_bytes < 0:
            raise ValueError(f"limit_bytes = {limit_bytes}: expected at least 0")
        self.store = store
        self.folder = Path(folder)
        self.limit_bytes = limit_bytes
        self.hits = self.misses = self.evictions = 0
        self._lock = threading.Lock()
        self.folder.mkdir(parents=True, exist_ok=True)
        for unfinished in self.folder.glob("*" + _UNFINISHED):
            # Delete an entry whose writer is dead: locks end with their process, whereas its id may be reused.
            with suppress(OSError), unfinished.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                unfinished.unlink()
        self._sizes = OrderedDict((name, size) for _, name, size in sorted(_entries(self.folder)))
        self._make_room(0)

    @property
    def stored_bytes(self) -> int:
        return sum(self._sizes.values())

    def get(self, key: str) -> bytes:
        data = self._read(key)
        if data is None:
            self.misses += 1
            data = self.store.get(key)
            self._write(key, data)
        return data

    def _read(self, key: str) -> bytes | None:
        name = _file_name(key)
        with self._lock:
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
        try:
            raw = (self.folder / name).read_bytes()
            os.utime(self.folder / name)
        except OSError:  # evicted by another process, or unreadable
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
            unfinished = self.folder / f"{name}.{os.getpid()}-{next(_NUMBERS)}{_UNFINISHED}"
            self._drop(name)
            self._make_room(size)
            try:
                with unfinished.open("xb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)  # held while this process lives and writes
                    file.write(_CRC.pack(crc32c(data)) + data)
                    file.flush()
                    os.replace(unfinished, self.folder / name)
            except OSError:
                with suppress(OSError):
                    unfinished.unlink()
                return
            self._sizes[name] = size

    def _make_room(self, size: int) -> None:
        while self._sizes and self.stored_bytes + size > self.limit_bytes:
            self._drop(next(iter(self._sizes)))
            self.evictions += 1

    def _drop(self, name: str) -> None:
        if self._sizes.pop(name, None) is not None:
            with suppress(OSError):
                (self.folder / name).unlink()


def _entries(folder: Path) -> Iterator[tuple[int, str, int]]:
    """(modification time in ns, name, bytes) of every entry; another process may delete some meanwhile."""
    for path in folder.glob("*" + _SUFFIX):
        with suppress(FileNotFoundError):
            status = path.stat()
            yield status.st_mtime_ns, path.name, status.st_size


def _file_name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32] + _SUFFIX
