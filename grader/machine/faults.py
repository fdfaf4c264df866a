"""Faults of the machine, or of the course on it: they stop a run, and are never a student's points."""

from __future__ import annotations

import errno
import os
import re

_NO_SPACE = "free some space there (temporary files go to $TMPDIR, or else /tmp)"
_NO_MEMORY = "free some memory, or grade fewer submissions at a time (--jobs 1)"
_NO_FILES = "raise the limit of open files (ulimit -n), or grade fewer submissions at a time (--jobs 1)"
_NO_RIGHT = "give yourself the right to read and write there"
_NO_PLACE = "name another place"
_NEXT_STEP = {
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.EFBIG: _NO_SPACE,
    errno.ENOMEM: _NO_MEMORY,
    errno.EAGAIN: _NO_MEMORY,
    errno.EMFILE: _NO_FILES,
    errno.ENFILE: _NO_FILES,
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: _NO_RIGHT,
    errno.EEXIST: _NO_PLACE,
    errno.EISDIR: _NO_PLACE,
    errno.ENOENT: _NO_PLACE,
    errno.ENOTDIR: _NO_PLACE,
}
_OF_THE_MACHINE = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
        errno.EROFS,
        errno.EIO,
    }
)


class MachineFault(Exception):
    """Grading cannot go on and no submission is to blame. The message names the cause and the next step."""


def is_machines(error: BaseException) -> bool:
    """Whether an exception of the grader's own code tells of this machine, and not of the values it was given."""
    if isinstance(error, OSError):
        return _number(error) in _OF_THE_MACHINE
    return isinstance(error, ImportError)


def cause(error: BaseException) -> str:
    """An exception as one sentence with a next step."""
    if isinstance(error, MemoryError):
        return f"this machine is out of memory: {_NO_MEMORY}"
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        number = _number(error)
        step = _NEXT_STEP.get(number, "`threeloops doctor` looks at the machine")
        what = (error.strerror or os.strerror(number)) if number else str(error)
        return f"the machine refused: {what}{where}; {step}, then give the same command again"
    return (
        f"the grader failed with {type(error).__name__}: {error}; `threeloops doctor` looks at the machine, and if it "
        "finds nothing, please report this message"
    )


def _number(error: OSError) -> int:
    """The error's number; the first one in the text of shutil.Error, which collects those of many files. 0: none."""
    named = re.search(r"\[Errno (\d+)\]", str(error))
    return error.errno or (int(named.group(1)) if named else 0)
