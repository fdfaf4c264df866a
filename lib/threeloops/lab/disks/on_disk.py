"""Record what a student's function does to a folder, or run it on folders, from a test.

`threeloops.lab` does not import torch, and therefore not this module. A lab that needs it imports it from here.
"""

import builtins
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from threeloops.lab.checking import wall
from threeloops.lab.disks.kept import Kept
from threeloops.training.checkpoint.crash.explore import write_files
from threeloops.training.checkpoint.crash.model.operations import Record
from threeloops.training.checkpoint.crash.model.states import Files
from threeloops.training.checkpoint.crash.recording.failures import Failure
from threeloops.training.checkpoint.crash.recording.record import recording

__all__ = ["Folder", "Recorded", "in_folder", "on_disk", "on_folders"]


@dataclass(frozen=True)
class Recorded:
    """The record of a program's operations on a folder, and either its result or the error that ended it."""

    record: Record
    result: Any
    error: Exception | None


class Folder(Protocol):
    """A folder for the student's function, which gets its `path`."""

    path: Path

    def read(self, name: str) -> bytes | None:
        """Return the content of a file in the folder, or None if it does not exist."""

    def shared(self, name: str, size: int) -> Any:
        """Make a file of `size` bytes and return its mapped memory. The student's process can map the file as well."""


def on_disk(
    program: Callable[..., Any], *arguments: Any, files: Files | None = None, fail: Failure | None = None
) -> Recorded:
    """Run `program(folder, saved, *arguments)` on a new folder with `files`, and record the operations on the folder.

    The program runs in the test's process, and calls the student's function, which is one of the arguments. Behind the
    wall the disk is on the grader's side: see `kept.py`.

    Args:
        program: calls `saved()` after each save that returned. The last of these calls can be left out.
        fail: how the disk fails. If given, an error of the program ends the record and is returned, not raised.

    Raises:
        NotImplementedError: the program raised this error without a message, as an unwritten exercise does.
        BadRecord: behind the wall, the student's process asked the disk for something impossible.
    """
    if wall.connection is not None:
        with Kept(files or {}, fail or Failure()).open() as disk:
            result, error = _ended(program, disk.path, disk.saved, *arguments, returns_error=fail is not None)
            disk.finish(is_whole=error is None)
        return Recorded(disk.record, result, error)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "folder"
        result = None
        error = None
        recorder = None
        write_files(folder, files or {})
        try:
            with recording(folder, fail=fail) as recorder:
                result, error = _ended(program, folder, recorder.saved, *arguments, returns_error=fail is not None)
                if error is not None:
                    raise error
        except Exception:
            if error is None or recorder is None:
                raise
        return Recorded(recorder.record, result, error)


def on_folders(function: Callable[..., Any], folders: Sequence[Files], *arguments: Any) -> list[Any]:
    """Return the results of `function(path, *arguments)` for folders with these files, one folder per call. If a call
    raises an exception, its result is that exception, as its nearest builtin class with the same message.

    Raises:
        NotImplementedError: as `on_disk`.
    """
    outcomes = []
    for files in folders:
        with in_folder(files) as folder:
            result, error = _ended(function, folder.path, *arguments, returns_error=True)
            outcomes.append(result if error is None else error)
    return outcomes


@contextmanager
def in_folder(files: Files) -> Iterator[Folder]:
    """Make a folder with `files`, for the student's function to use and for the test to read.

    Behind the wall, the folder is in the sandbox. The grader's side uses it through a descriptor that it got before the
    student's code ran.
    """
    if wall.connection is not None:
        with wall.connection.folders.new(files) as folder:
            yield folder
        return
    with TemporaryDirectory() as scratch:
        write_files(Path(scratch) / "folder", files)
        yield _OwnFolder(Path(scratch) / "folder")


@dataclass
class _OwnFolder:
    path: Path

    def read(self, name: str) -> bytes | None:
        path = self.path / name
        return path.read_bytes() if path.exists() else None

    def shared(self, name: str, size: int) -> bytearray:
        return bytearray(size)


def _ended(function: Callable[..., Any], *arguments: Any, returns_error: bool) -> tuple[Any, Exception | None]:
    """Return the result of a call, or its error if `returns_error`. An unwritten exercise always raises its error."""
    try:
        return function(*arguments), None
    except Exception as error:
        if not returns_error or (type(error) is NotImplementedError and not str(error)):
            raise
        return None, _nearest_builtin(error)


def _nearest_builtin(error: Exception) -> Exception:
    """Return an error with the same text and the nearest builtin class, because a student's cell may define classes."""
    nearest = next((kind for ancestor in type(error).__mro__ if (kind := _builtin(ancestor)) is not None), RuntimeError)
    made = nearest(str(error)[:4000])
    if isinstance(error, OSError):
        made.errno = error.errno  # type: ignore[attr-defined]
    if wall.connection is not None:
        wall.connection.note_words(made)
    return made


def _builtin(kind: type) -> type[Exception] | None:
    if getattr(builtins, kind.__name__, None) is not kind or not issubclass(kind, Exception):
        return None
    return None if kind is Exception or issubclass(kind, UnicodeError) else kind
