"""Disks that fail, for `recording(folder, fail=...)`."""

import errno
import os
from dataclasses import dataclass

__all__ = ["DiskFull", "Failure", "ShortWrites", "SyncFails"]


class Failure:
    """A healthy disk."""

    def bytes_taken(self, size: int) -> int:
        """Return how many bytes a write of `size` may write. Raises OSError if it fails."""
        return size

    def before_sync(self) -> None:
        """Raises OSError if the fsync fails."""


@dataclass
class DiskFull(Failure):
    """A disk with room for a number of bytes. The write that reaches the end is short, and the next one fails with
    ENOSPC."""

    after_bytes: int

    def bytes_taken(self, size: int) -> int:
        if size and self.after_bytes <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = min(size, self.after_bytes)
        self.after_bytes -= taken
        return taken


@dataclass
class ShortWrites(Failure):
    """A disk on which no write takes more than a number of bytes, as write(2) permits. The caller has to write the
    rest."""

    most: int

    def bytes_taken(self, size: int) -> int:
        return min(size, self.most)


@dataclass
class SyncFails(Failure):
    """A disk on which fsync number `at` fails with EIO, counted from 0. The later ones succeed, but they do not write
    the data of that file: on Linux these data are lost (Rebello et al. 2020, "Can Applications Recover from fsync
    Failures?", USENIX ATC)."""

    at: int = 0

    def before_sync(self) -> None:
        self.at -= 1
        if self.at == -1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
