"""Files for the output of ranks. Each holds at most 1 MiB, so that a rank in a loop fills neither disk nor memory.

The limit applies to this file and not to the process: a rank may write other files of any size.
"""

import fcntl
import io
import os
import tempfile
from typing import IO

__all__ = ["bounded_text", "log", "text_of"]

_MOST_PRINTED = 1 << 20
"""Bytes; a multiple of the page size."""


def log() -> IO[bytes]:
    """An empty file for one rank. If the system cannot bound a file, or a sandbox forbids it, only the part that is
    read back is bounded."""
    try:
        number = os.memfd_create("printed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(number, _MOST_PRINTED)
        fcntl.fcntl(number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    except (AttributeError, OSError):
        return tempfile.TemporaryFile()
    return open(number, "r+b", buffering=0)


def text_of(file: IO[bytes]) -> str:
    """All that was written to a log. A last line says so if there was more than it holds."""
    size = os.lseek(file.fileno(), 0, os.SEEK_CUR)  # ranks write through the same open file, and so move its position
    text = os.pread(file.fileno(), min(size, _MOST_PRINTED), 0).decode(errors="replace")
    return (
        text
        if size < _MOST_PRINTED
        else f"{text}\n… more than {_MOST_PRINTED:,} bytes were printed: the rest is not kept"
    )


def bounded_text(descriptor: int) -> io.TextIOWrapper:
    """A rank's standard output or error. Each line is written at once, because a signal ends this process. A line
    beyond the limit is dropped, so that printing too much makes no program fail."""
    return io.TextIOWrapper(
        io.BufferedWriter(_Dropping(descriptor, "w", closefd=False)),  # type: ignore[type-var]
        "utf-8",
        "replace",
        line_buffering=True,
    )


class _Dropping(io.FileIO):
    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError:
            return len(data)
