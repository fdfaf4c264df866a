"""Check a student's folder before any file in it is opened: its name, its files and their sizes."""

import os
import stat
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from threeloops_grader.machine.faults import is_machines
from threeloops_grader.submissions.submitted import BadSubmission

__all__ = [
    "MAX_FILES", "MAX_FOLDER_BYTES", "TIMESTAMP", "below", "is_student", "require_plain_files",
    "require_small_notebook", "require_student", "require_timestamp", "spelling", "student_name",
]  # fmt: skip

_MAX_NAME = 100
_MAX_NAME_BYTES = 255
MAX_FILES = 1000
MAX_FOLDER_BYTES = 100 << 20
_MAX_NOTEBOOK_BYTES = 32 << 20
TIMESTAMP = "timestamp.txt"
"""The file in which nbgrader notes when a submission was handed in."""

_MAX_TIMESTAMP_BYTES = 100
_SHOWN = 40

_JOINERS = "\u200c\u200d"
"""Invisible, but part of how Persian and several Indian names are spelled."""


def student_name(folder: str) -> str:
    """Return the student whose folder has this name: in composed Unicode (NFC), with escapes for unprintable
    characters."""
    composed = unicodedata.normalize("NFC", folder)
    return "".join(c if _is_printable(c) else c.encode("unicode_escape").decode() for c in composed)


def require_student(name: str) -> None:
    """Check a student's name. Raises BadSubmission if `name`, in the form of `student_name`, cannot be a student's, for
    example because it leads to another folder."""
    if why := _why_no_student(name):
        raise BadSubmission(f"the folder name {name!r} cannot be a student's: {why}; rename the folder and grade again")


def is_student(name: str) -> bool:
    return not _why_no_student(name)


def _why_no_student(name: str) -> str:
    if not name.strip():
        return "it is empty"
    if name.startswith(".") or ".." in name:
        return "it starts with a dot or holds two in a row"
    if "/" in name or "\\" in name or not all(map(_is_printable, name)):
        return "it holds a slash, a backslash or a character that cannot be printed"
    size = len(os.fsencode(name))
    if len(name) > _MAX_NAME or size > _MAX_NAME_BYTES:
        return f"it has {len(name)} characters in {size} bytes, at most {_MAX_NAME} in {_MAX_NAME_BYTES}"
    return ""


def spelling(name: str) -> str:
    """Return the visible part of a name: readers cannot tell two folders with one spelling apart."""
    return "".join(c for c in unicodedata.normalize("NFC", name) if c not in _JOINERS)


def _is_printable(character: str) -> bool:
    return character.isprintable() or character in _JOINERS


def require_plain_files(folder: Path) -> None:
    """Check every file in a student's folder for one lab without opening any.

    Raises:
        BadSubmission: the folder, the student's folder above it, or something inside is a link, a pipe or a device, or
            there are more files or bytes than a submission has.
    """
    for part in (folder.parent, folder):
        if part.is_symlink():
            raise BadSubmission(f"{part.name} is a symbolic link; hand in the folder itself")
    size = 0
    for files, (path, status) in enumerate(below(folder), start=1):
        shown = student_name(path.relative_to(folder).as_posix())
        if stat.S_ISLNK(status.st_mode):
            raise BadSubmission(f"{shown} is a symbolic link; hand in the file itself")
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise BadSubmission(f"{shown} is a pipe, a socket or a device, not a file; delete it and hand in again")
        size += status.st_size if stat.S_ISREG(status.st_mode) else 0
        if files > MAX_FILES:
            raise BadSubmission(f"the folder holds more than {MAX_FILES:,} files; hand in the notebook alone")
        if size > MAX_FOLDER_BYTES:
            raise BadSubmission(
                f"the folder's files have {size / 2**20:,.0f} MiB and more, at most {MAX_FOLDER_BYTES >> 20} are "
                "accepted; hand in the notebook alone"
            )


def require_small_notebook(size: int) -> None:
    """Check the size of a notebook. Raises BadSubmission if a notebook file of `size` bytes is larger than grading
    reads."""
    if size > _MAX_NOTEBOOK_BYTES:
        raise BadSubmission(
            f"the notebook has {size / 2**20:.0f} MiB, at most {_MAX_NOTEBOOK_BYTES >> 20} are read; clear its outputs"
        )


def below(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield everything below a folder, without following links. It is lazy, because there may be millions."""
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    yield Path(entry.path), entry.stat(follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):  # the folder itself: the caller says what is missing
            continue


def require_timestamp(folder: Path) -> None:
    """Check that nbgrader can read the time of a submission. Otherwise it would end the whole run.

    Raises:
        BadSubmission: the timestamp is not a time. A missing or an empty one is not a fault.
        OSError: the machine cannot read files now.
    """
    text = b""
    try:
        with (folder / TIMESTAMP).open("rb") as file:
            text = file.read(_MAX_TIMESTAMP_BYTES + 1)
        if len(text) > _MAX_TIMESTAMP_BYTES:
            raise ValueError
        if written := text.decode("ascii").strip():
            from nbgrader.utils import parse_utc  # slow, and most folders hold no timestamp

            parse_utc(written)
    except (FileNotFoundError, NotADirectoryError):
        return
    except Exception as error:  # the parser raises several unrelated types
        if is_machines(error):
            raise
        shown = ascii(text[:_SHOWN].decode("ascii", "replace")) if text else "a file that cannot be read"
        raise BadSubmission(
            f"{TIMESTAMP} does not hold a time: found {shown}, expected one such as '2030-01-31 12:00:00 UTC'; delete "
            "the file and hand in again"
        ) from None
