"""Faults of the machine or of the course's installation. They stop a run and never cost a student points."""

import errno
import os
import re

__all__ = ["MachineFault", "NO_MEMORY", "cause", "is_machines"]

_FEWER = "or grade fewer submissions at a time (--jobs 1)"
NO_MEMORY = f"free some memory, {_FEWER}"
_NEXT_STEPS = {
    NO_MEMORY: (errno.ENOMEM, errno.EAGAIN),
    "free some space there (temporary files go to $TMPDIR, or else /tmp)": (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    f"raise the limit of open files (ulimit -n), {_FEWER}": (errno.EMFILE, errno.ENFILE),
    "give yourself the right to read and write there": (errno.EACCES, errno.EPERM, errno.EROFS),
    "let the program that reads the output read all of it (`head` does not)": (errno.EPIPE,),
    "name another place": (errno.EEXIST, errno.EISDIR, errno.ENOENT, errno.ENOTDIR),
}
_RESOURCES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EROFS, errno.EIO)


class MachineFault(Exception):
    """Grading cannot go on, and no submission is to blame. The message names the cause and the next step."""


def is_machines(error: BaseException) -> bool:
    """Return whether an exception of the grader's own code is this machine's fault, and not the fault of its
    arguments."""
    return _number(error) in _RESOURCES if isinstance(error, OSError) else isinstance(error, ImportError)


def cause(error: BaseException) -> str:
    """Return an exception as one sentence with a next step."""
    if isinstance(error, MemoryError):
        return f"this machine is out of memory: {NO_MEMORY}"
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        number = _number(error)
        steps = (step for step, numbers in _NEXT_STEPS.items() if number in numbers)
        step = next(steps, "`threeloops doctor` looks at the machine")
        what = (error.strerror or os.strerror(number)) if number else str(error)
        return f"the machine refused: {what}{where}; {step}, then give the same command again"
    return (
        f"the grader failed with {type(error).__name__}: {error}; `threeloops doctor` looks at the machine, and if it "
        "finds nothing, please report this message"
    )


def _number(error: OSError) -> int:
    """Return the error's number, or 0. shutil.Error collects the errors of many files in its text, of which the first
    counts."""
    named = re.search(r"\[Errno (\d+)\]", str(error))
    return error.errno or (int(named.group(1)) if named else 0)
