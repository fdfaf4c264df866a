"""Record what a student's function does to a folder, or run it on folders, from a test.

Not a name of `threeloops.lab`, which imports no torch: a lab that needs it imports it from here.
"""

import builtins
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from threeloops.lab.checking import wall
from threeloops.training.checkpoint.crash.explore import write_files
from threeloops.training.checkpoint.crash.model.operations import Record
from threeloops.training.checkpoint.crash.model.states import Files
from threeloops.training.checkpoint.crash.recording.failures import Failure
from threeloops.training.checkpoint.crash.recording.record import recording

__all__ = ["Recorded", "on_disk", "on_folders"]

_Raised = tuple[list[str], str, int | None]
"""Names of builtin classes, the nearest first; the message; the number of a system's error."""


@dataclass(frozen=True)
class Recorded:
    """What a program did to a folder: its record, what it returned, or the error that ended it."""

    record: Record
    result: Any
    error: Exception | None


def on_disk(
    program: Callable[..., Any], *arguments: Any, files: Files | None = None, fail: Failure | None = None
) -> Recorded:
    """Run `program(folder, saved, *arguments)` in a new folder that holds `files`, and record what it does there.

    Behind the wall the program runs in the sandbox and is recorded there; what comes back is a record as plain data,
    which is checked, and explored on the grader's side. So the student's process could send a forged one: operations
    that its function never did. It would have to hold the right data in the right order, which is the exercise.

    Args:
        program: a function of a setup cell, which gets the student's function as an argument, or that function. It
            calls `saved()` after each save that returned; at its end that is implied.
        fail: how the disk fails. Then an error of the program ends the record, and is returned; otherwise it is raised.

    Raises:
        TypeError: a function of a test cell is to run there.
        NotImplementedError: the program raised it without a message, as an exercise does that is not written yet.
        BadRecord: behind the wall, what came back is no record.
    """
    answer = _call("_record", [program, *arguments], files or {}, fail)
    if type(answer) is not tuple or len(answer) != 3 or type(answer[0]) is not bytes:
        raise RuntimeError("this submission sent no record of what it did to the folder")
    return Recorded(Record.from_bytes(answer[0]), answer[1], _rebuilt(answer[2]) if answer[2] else None)


def on_folders(function: Callable[..., Any], folders: Sequence[Files], *arguments: Any) -> list[Any]:
    """What `function(folder, *arguments)` returns for each folder with these files, or the exception that it raises: as
    its nearest builtin class, with its message.

    Raises:
        TypeError, NotImplementedError: as `on_disk`.
    """
    answers = _call("_run", [function, *arguments], list(folders))
    if type(answers) is not list or len(answers) != len(folders):
        raise RuntimeError(f"this submission did not answer for each of {len(folders)} folders")
    found = []
    for answer in answers:
        if type(answer) is not tuple or len(answer) != 2:
            raise RuntimeError("this submission gave a malformed answer for a folder")
        found.append(_rebuilt(answer[1]) if answer[1] else answer[0])
    return found


def _record(call: Sequence[Any], files: Files, fail: Failure | None) -> tuple[bytes, Any, _Raised | None]:
    """Where the student's function lives."""
    program, *arguments = call
    with tempfile.TemporaryDirectory() as scratch:
        folder, result, raised = Path(scratch) / "folder", None, None
        write_files(folder, files)
        recorder = None
        try:
            with recording(folder, fail=fail) as recorder:
                result = program(folder, recorder.saved, *arguments)
        except Exception as error:
            if fail is None or recorder is None or _is_unwritten(error):
                raise
            raised = _raised(error)
        return recorder.record.to_bytes(), result, raised


def _run(call: Sequence[Any], folders: Sequence[Files]) -> list[tuple[Any, _Raised | None]]:
    """Where the student's function lives."""
    function, *arguments = call
    found: list[tuple[Any, _Raised | None]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, files in enumerate(folders):
            folder = Path(scratch) / str(number)
            write_files(folder, files)
            try:
                found.append((function(folder, *arguments), None))
            except Exception as error:
                if _is_unwritten(error):
                    raise
                found.append((None, _raised(error)))
    return found


def _call(name: str, call: Sequence[Any], *arguments: Any) -> Any:
    if wall.connection is None:
        return globals()[name](call, *arguments)
    for each in call:
        if type(each) is FunctionType and each.__module__ == "__main__" and not wall.connection.is_of_setup(each):
            raise TypeError(
                f"{each.__name__} is a function of a test cell: define it in a setup cell to run it on a folder"
            )
    return wall.connection.call_library((__name__, name), [call, *arguments], {})


def _is_unwritten(error: Exception) -> bool:
    return type(error) is NotImplementedError and not error.args


def _raised(error: Exception) -> _Raised:
    names = [each.__name__ for each in type(error).__mro__ if each.__module__ == "builtins"]
    return names, str(error), error.errno if isinstance(error, OSError) else None


def _rebuilt(raised: Any) -> Exception:
    """The student's word: at most a builtin exception with a text."""
    if type(raised) is not tuple or len(raised) != 3 or type(raised[0]) is not list:
        raise RuntimeError("this submission gave a malformed error")
    names, message, number = raised
    found = next((kind for name in names[:16] if (kind := _builtin(name)) is not None), RuntimeError)
    error = found(str(message)[:4000])
    if isinstance(error, OSError) and type(number) is int:
        error.errno = number
    if wall.connection is not None:
        wall.connection.note_words(error)
    return error


def _builtin(name: Any) -> type[Exception] | None:
    kind = getattr(builtins, name, None) if type(name) is str else None
    simple = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, UnicodeError)
    return kind if simple and kind is not Exception else None
