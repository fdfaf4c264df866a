"""A simulated disk on the grader's side.

A recorder in the student's process sends the disk a request for each operation, when the operation happens. The disk
answers how it went: how many bytes it wrote, or that an fsync failed. The student's code could send requests without
the recorder. But that only makes the disk do one more operation, which is what the exercise asks for. The student's
code cannot pretend that an operation happened, how it went, or that a call returned. The folder in the sandbox is a
copy to read from. If something else changes that copy (a system call, a memory map, another process), the disk does not
change.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from threeloops.lab.checking import wall
from threeloops.training.checkpoint.crash.explore import write_files
from threeloops.training.checkpoint.crash.model.disk import Disk
from threeloops.training.checkpoint.crash.model.operations import (
    BadRecord,
    Entry,
    Operation,
    Record,
    Saved,
    Sync,
    SyncAll,
    Write,
    operation_from_bytes,
)
from threeloops.training.checkpoint.crash.model.states import Files
from threeloops.training.checkpoint.crash.recording.calls import installed
from threeloops.training.checkpoint.crash.recording.failures import Failure
from threeloops.training.checkpoint.crash.recording.keeper import Keeper
from threeloops.training.checkpoint.crash.recording.record import Recorder

__all__ = ["Kept"]

_MOST_OPERATIONS = 10_000


class Kept(Keeper):
    """The disk. Its requests are not trusted: it does what a disk can do, and refuses everything else."""

    path: Path
    """The path of the copy in the student's process."""

    def __init__(self, files: Files, fail: Failure) -> None:
        super().__init__(Record(list(_entries(files)), []), fail)
        self._files = files
        self._disk = Disk(_entries(files))
        self._refused: BadRecord | None = None
        self._is_open = False

    @contextmanager
    def open(self) -> Iterator["Kept"]:
        """Have the student's process record its operations, within the `with` block."""
        with wall.offered(self.ask) as ask:
            path = wall.connection.call_library((__name__, "_begin"), [self._files, ask], {})
            if type(path) is not str:
                raise RuntimeError("this submission named no folder")
            self.path = Path(path)
            self._is_open = True
            try:
                yield self
            finally:
                self._end(is_whole=False)

    def ask(self, encoded: object) -> int | None:
        """Do one operation. For a write, return how many bytes the disk has written.

        Raises:
            OSError: the disk failed.
            BadRecord: the operation is impossible. The record is invalid from now on.
        """
        try:
            operation = operation_from_bytes(encoded)
            if isinstance(operation, Write):
                return self.write(operation)
            if isinstance(operation, Sync | SyncAll):
                self.sync(operation)
            else:
                self.add(operation)
        except BadRecord as error:
            self._refused = self._refused or error
            raise
        return None

    def add(self, operation: Operation) -> None:
        if len(self.record.operations) >= _MOST_OPERATIONS:
            raise BadRecord(f"more than {_MOST_OPERATIONS} operations in one recording")
        self._disk.apply(operation)
        super().add(operation)

    def sync(self, operation: Sync | SyncAll) -> None:
        if isinstance(operation, Sync) and operation.inode not in self._disk.inodes:
            raise BadRecord(f"{operation}: expected a file or a folder of this disk")
        super().sync(operation)

    def saved(self) -> None:
        """Record that the call returned. From now on, what it saved must not be lost."""
        super().add(Saved())
        self._disk.apply(Saved())

    def finish(self, *, is_whole: bool) -> None:
        """End the record. If `is_whole`, the last call has returned, and the student's process checks its copy for
        changes that were not recorded.

        Raises:
            BadRecord: the student's process asked for something impossible.
            Escaped: there are changes that were not recorded.
        """
        if self._refused:
            raise self._refused
        self._end(is_whole=is_whole)
        operations = self.record.operations
        if is_whole and not (operations and isinstance(operations[-1], Saved)):
            self.saved()

    def _end(self, *, is_whole: bool) -> None:
        if self._is_open:
            self._is_open = False
            wall.connection.call_library((__name__, "_end"), [is_whole], {})


def _entries(files: Files) -> Iterator[Entry]:
    """Yield the entries of a folder with these files, numbered as a recorder numbers them."""
    for number, path in enumerate(sorted(files, key=lambda path: path.split("/")), 1):
        content = files[path]
        data, target = (content, None) if isinstance(content, bytes) else (None, content)
        yield Entry(path, number, data, target)


# In the student's process


class _Distant(Keeper):
    """A keeper that passes requests on to the grader's disk. It also has its own record, to compare the folder with."""

    def __init__(self, record: Record, ask: Callable[[bytes], int | None]) -> None:
        super().__init__(record, Failure())
        self._ask = ask

    def add(self, operation: Operation) -> None:
        if not isinstance(operation, Saved):
            self._ask(operation.to_bytes())
        super().add(operation)

    def write(self, operation: Write) -> int:
        count = self._ask(operation.to_bytes())
        assert count is not None
        super().add(Write(operation.file, operation.path, operation.offset, operation.data[:count]))
        return count

    def sync(self, operation: Sync | SyncAll) -> None:
        self._ask(operation.to_bytes())


_open: list[tuple[ExitStack, Recorder]] = []


def _begin(files: Files, ask: Callable[[bytes], int | None]) -> str:
    """Begin to record in a new folder with `files`, and return its path. Ends a recording that is still open."""
    _end(False)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "folder"
        write_files(folder, files)
        recorder = Recorder(folder, lambda record: _Distant(record, ask))
        stack.enter_context(installed(recorder))
        _open.append((stack.pop_all(), recorder))
    return str(folder)


def _end(is_whole: bool) -> None:
    """End the recording. If `is_whole`, raise Escaped if the folder has changes that were not recorded."""
    if _open:
        stack, recorder = _open.pop()
        with stack:
            if is_whole:
                recorder.finish()
