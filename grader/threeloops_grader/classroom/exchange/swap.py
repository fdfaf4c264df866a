"""Put a folder in the place of another one, at once."""

import ctypes
import os
import shutil
from pathlib import Path

__all__ = ["put_in_place"]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def put_in_place(new: Path, current: Path) -> None:
    """Rename `new` to `current`, and remove the folder that was there, if there was one.

    A process that is killed here leaves one of the two at `current`. Only if the file system cannot exchange names,
    there may be neither, for a moment.
    """
    if not current.is_dir():
        new.rename(current)
    elif _exchanged(new, current):
        shutil.rmtree(new)
    else:
        shutil.rmtree(current)
        new.rename(current)


def _exchanged(first: Path, second: Path) -> bool:
    """Exchange the names of two folders. Returns whether the system could."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):  # another system than Linux, or an old one
        return False
    names = os.fsencode(first), os.fsencode(second)
    return bool(rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)
