"""Replacement of `open` whose files pass their writes to the recorder, after Python's buffer and in its order."""

import io
import os
from typing import Any

__all__ = ["open_recorded", "writes"]


def writes(mode: str) -> bool:
    return any(letter in mode for letter in "wax+")


class _RecordedFile(io.FileIO):
    """The raw file below the buffers: all that changes the file goes through `os`, which is recorded."""

    def write(self, data: Any) -> int:
        return os.write(self.fileno(), data)

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        os.ftruncate(self.fileno(), size)
        return size


def open_recorded(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Any = None,
) -> Any:
    """Open a file like `io.open`, for modes that write. It follows CPython's Lib/_pyio.py."""
    binary = "b" in mode
    both = "+" in mode
    if binary and (encoding or errors or newline is not None):
        raise ValueError("binary mode takes no encoding, errors or newline argument")
    if not binary and buffering == 0:
        raise ValueError("can't have unbuffered text I/O")
    raw = _RecordedFile(file, mode.replace("b", "").replace("t", ""), closefd, opener or _open)
    try:
        line_buffering = buffering == 1 or (buffering < 0 and raw.isatty())
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else max(getattr(raw, "_blksize", 0), io.DEFAULT_BUFFER_SIZE)
        buffer: Any = (io.BufferedRandom if both else io.BufferedWriter)(raw, size)
        if binary:
            return buffer
        text = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering)
        text.mode = mode  # type: ignore[misc]
        return text
    except BaseException:
        raw.close()
        raise


def _open(path: Any, flags: int) -> int:
    return os.open(path, flags, 0o666)
