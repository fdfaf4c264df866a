"""Copy a folder that somebody else can change at the same time."""

import errno
import os
import stat
from pathlib import Path

from threeloops_grader.submissions.folder import MAX_FILES, MAX_FOLDER_BYTES, student_name
from threeloops_grader.submissions.submitted import BadSubmission

__all__ = ["copy_plain"]

_MOST_DEEP = 16
"""The deepest nesting of folders. Each level takes an open descriptor and a nested call."""
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def copy_plain(source: Path, target: Path) -> None:
    """Copy the regular files below `source` to a new folder `target`; nothing is opened through a link.

    Raises:
        BadSubmission: something there is a link, a pipe or a device, belongs to somebody other than the folder does,
            cannot be read, or there are more files, bytes or levels of folders than a submission has. `target` may be
            half-written then.
    """
    opened = _open(str(source), None, source.name, directory=True)
    try:
        _Copy(os.fstat(opened).st_uid).folder(opened, target, "")
    finally:
        os.close(opened)


class _Copy:
    """One folder's copy; counts its files and bytes."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.files = 0
        self.bytes = 0

    def folder(self, opened: int, target: Path, name: str) -> None:
        target.mkdir(parents=True)
        for entry in sorted(os.listdir(opened)):
            shown = f"{name}{student_name(entry)}"
            self.files += 1
            if self.files > MAX_FILES:
                raise BadSubmission(f"the folder holds more than {MAX_FILES:,} files; hand in the notebook alone")
            inside = _open(entry, opened, shown)
            try:
                status = os.fstat(inside)
                if status.st_uid != self.owner:
                    raise BadSubmission(f"{shown} belongs to another user than the folder; hand in a file of your own")
                if stat.S_ISDIR(status.st_mode):
                    if shown.count("/") >= _MOST_DEEP:
                        raise BadSubmission(
                            f"more than {_MOST_DEEP} folders lie in each other; hand in the notebook alone"
                        )
                    self.folder(inside, target / entry, f"{shown}/")
                elif stat.S_ISREG(status.st_mode):
                    self.file(inside, target / entry)
                else:
                    raise BadSubmission(f"{shown} is a pipe, a socket or a device, not a file; delete it")
            finally:
                os.close(inside)

    def file(self, opened: int, target: Path) -> None:
        remaining = MAX_FOLDER_BYTES - self.bytes
        with open(opened, "rb", closefd=False) as content, target.open("wb") as copy:
            while remaining >= 0 and (part := content.read(1 << 20)):
                copy.write(part[: remaining + 1])
                remaining -= len(part)
        self.bytes = MAX_FOLDER_BYTES - remaining
        if remaining < 0:
            most = MAX_FOLDER_BYTES >> 20
            raise BadSubmission(f"the folder's files have more than {most} MiB; hand in the notebook alone")


def _open(name: str, folder: int | None, shown: str, *, directory: bool = False) -> int:
    try:
        return os.open(name, _OPEN | (os.O_DIRECTORY if directory else 0), dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise BadSubmission(f"{shown} is a symbolic link; hand in the file itself") from None
        raise BadSubmission(f"{shown} cannot be read ({error.strerror}); hand in again") from None
