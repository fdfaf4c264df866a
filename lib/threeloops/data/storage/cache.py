"""A local cache in front of a slow store: bounded bytes, least recently used out first, never half a file.

An entry is written beside its place and renamed into it, so a reader, or the next process, sees all of it or nothing.
It begins with the CRC32C of its contents: an entry that a crash or a disk has damaged counts as missing. A cache only
saves time: whatever its folder refuses to do, the data come from the store.
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
from threeloops.data.storage.store import Store, part, require_range

_CRC = struct.Struct("<I")
_SUFFIX, _UNFINISHED = ".cached", ".unfinished"
_NUMBERS = count(1)  # of all that this process writes, whichever cache it is for


class CachedStore:
    """`store`, with at most `limit_bytes` of whole objects kept in `folder`, the bytes of their CRCs included.

    Counts `hits`, `misses` and `evictions`. Objects larger than the limit pass through. Threads may share it; two that
    miss the same key at once both fetch it. The order of use survives a restart as the files' modification times.
    Processes may share the folder, and each keeps to the limit for what it found there and what it wrote. What cannot
    be written, because the disk is full for one, is given out and not kept.
    """

    def __init__(self, store: Store, folder: Path, limit_bytes: int) -> None:
        if limit_bytes < 0:
            raise ValueError(f"limit_bytes = {limit_bytes}: expected at least 0")
        self.store, self.folder, self.limit_bytes = store, Path(folder), limit_bytes
        self.hits = self.misses = self.evictions = 0
        self._lock = threading.Lock()
        self.folder.mkdir(parents=True, exist_ok=True)
        for unfinished in self.folder.glob("*" + _UNFINISHED):
            _sweep(unfinished)
        self._sizes = OrderedDict((name, size) for _, name, size in sorted(_entries(self.folder)))
        self._make_room(0)

    @property
    def stored_bytes(self) -> int:
        """On disk now."""
        return sum(self._sizes.values())

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        require_range(key, offset, length)
        data = self._read(key)
        if data is None:
            self.misses += 1
            data = self.store.get(key)
            self._write(key, data)
        return part(data, offset, length)

    def _read(self, key: str) -> bytes | None:
        name = _file_name(key)
        with self._lock:
            if name not in self._sizes:
                return None
            self._sizes.move_to_end(name)
        try:
            raw = (self.folder / name).read_bytes()
            os.utime(self.folder / name)
        except OSError:  # thrown out by another process, or unreadable
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
                    fcntl.flock(file, fcntl.LOCK_EX)  # while this process lives and writes: see `_sweep`
                    file.write(_CRC.pack(crc32c(data)) + data)
                    file.flush()
                    os.replace(unfinished, self.folder / name)
            except OSError:
                with suppress(OSError):
                    unfinished.unlink(missing_ok=True)
                return
            self._sizes[name] = size

    def _make_room(self, size: int) -> None:
        while self._sizes and self.stored_bytes + size > self.limit_bytes:
            self._drop(next(iter(self._sizes)))
            self.evictions += 1

    def _drop(self, name: str) -> None:
        if self._sizes.pop(name, None) is not None:
            with suppress(OSError):
                (self.folder / name).unlink(missing_ok=True)


def _sweep(unfinished: Path) -> None:
    """Delete half an entry whose writer is dead: a lock ends with its process, a process number may be used again."""
    with suppress(OSError), unfinished.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unfinished.unlink(missing_ok=True)


def _entries(folder: Path) -> Iterator[tuple[int, str, int]]:
    """(modification time in ns, name, bytes) of every entry that is still there when it is looked at."""
    for path in folder.glob("*" + _SUFFIX):
        with suppress(FileNotFoundError):
            found = path.stat()
            yield found.st_mtime_ns, path.name, found.st_size


def _file_name(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32] + _SUFFIX
