"""Record the requests of a save to the file system: `with recording(folder) as record: save(folder)`.

Within the block, Python's own ways to change files (`open`, `os`, and therefore `pathlib`, `shutil`, `tempfile`) are
replaced in all threads. Operations on the folder are done and written down under a lock, so that they have one order.
All others pass through. Afterwards the record is replayed and compared with the folder: contents, inodes and times. The
record lacks writes by C++ code, memory maps and other processes. If there were any, an error says so.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from threeloops.training.checkpoint.crash.model.disk import Disk
from threeloops.training.checkpoint.crash.model.operations import (
    ROOT,
    BadRecord,
    Entry,
    Operation,
    Record,
    Saved,
    Sync,
    SyncAll,
    Truncate,
    Write,
    paths,
)
from threeloops.training.checkpoint.crash.model.states import Files, visible
from threeloops.training.checkpoint.crash.recording.calls import installed
from threeloops.training.checkpoint.crash.recording.failures import Failure
from threeloops.training.checkpoint.crash.recording.keeper import Keeper
from threeloops.training.checkpoint.crash.recording.stamps import Stamps, changed_since, next_tick

__all__ = ["Escaped", "Recorder", "compare", "files_in", "link_target", "recording"]

_recording = threading.Lock()
_NOT_SEEN = (
    "the folder holds what the recorder did not see, so a crash of this save cannot be replayed: {}. "
    "C++ code, memory maps, other processes, and moves into or out of the folder pass it by; write through a file "
    "object of Python: `with open(path, 'wb') as f: torch.save(state, f)`, or "
    "f.write(safetensors.torch.save(tensors)), and open it within the recording"
)


class Escaped(RuntimeError):
    """Something changed the folder outside of the record."""


@contextmanager
def recording(folder: str | os.PathLike[str], *, fail: Failure | None = None) -> Iterator["Recorder"]:
    """Record the operations on a folder: `with recording(folder) as recorder: save(folder, ...)`, then
    `recorder.record`.

    For several saves, call `recorder.saved()` after each. The end of the block implies it. If the block raises, the
    record ends there and its save did not return: `with suppress(OSError), recording(...) as recorder`.

    Args:
        fail: how the disk fails: `DiskFull(after_bytes)`, `SyncFails(at)`, `ShortWrites(most)`.

    Raises:
        Escaped: the folder holds something that the record does not explain. Not checked if the block itself raised.
        RuntimeError: this process has started another recording.
    """
    if not _recording.acquire(blocking=False):
        raise RuntimeError("a recording is under way: expected one at a time; leave its block first")
    try:
        recorder = Recorder(Path(folder), lambda record: Keeper(record, fail or Failure()))
        with installed(recorder):
            yield recorder
        recorder.finish()
    finally:
        _recording.release()


class Recorder:
    """Does operations and writes down those that concern the folder. Use `recording`."""

    def __init__(
        self, folder: Path, keeper: Callable[[Record], Keeper] = lambda record: Keeper(record, Failure())
    ) -> None:
        self.folder = os.path.realpath(folder)
        if not os.path.isdir(self.folder):
            raise NotADirectoryError(f"folder = {folder}: expected a folder that exists")
        self.lock = threading.RLock()
        self._process = os.getpid()
        self._inodes: dict[tuple[int, int], tuple[int, str]] = {}
        """Our number of each file and folder, and its path when it was made, by the system's device and number."""
        self._next = ROOT
        self._stamps = Stamps()
        self.note(os.stat(self.folder), "")
        self.record = Record(list(self._start()), [])
        self._keeper = keeper(self.record)
        self._started = next_tick()

    def saved(self) -> None:
        """Note that the save returned, so its value must not be lost from here on."""
        with self.lock:
            self.add(Saved())

    def finish(self) -> None:
        if not self.record.operations or not isinstance(self.record.operations[-1], Saved):
            self.saved()
        try:
            tree = Disk.after(self.record).tree()
        except BadRecord as error:
            raise Escaped(_NOT_SEEN.format(f"by the record {error}")) from None
        compare({path: visible(inode.latest) for path, inode in tree.items()}, dict(files_in(self.folder)))
        self._compare_times({"": ROOT} | {path: inode.number for path, inode in tree.items()})

    def add(self, operation: Operation) -> None:
        self._check_process(operation)
        self._keeper.add(operation)
        if not isinstance(operation, Truncate):
            for path in paths(operation):
                full = os.path.join(self.folder, path)
                self.expect(*(os.lstat(entry) for entry in (full, os.path.dirname(full)) if os.path.lexists(entry)))

    def write(self, operation: Write) -> int:
        self._check_process(operation)
        return self._keeper.write(operation)

    def sync(self, operation: Sync | SyncAll) -> None:
        self._check_process(operation)
        self._keeper.sync(operation)

    def lose(self, number: int) -> None:
        self._keeper.lose(number)

    def _check_process(self, operation: Operation) -> None:
        if os.getpid() != self._process:
            raise Escaped(
                f"a forked process did `{operation}`: the record has the operations of the process that began it; save "
                "from threads, or record each process on its own"
            )

    def _compare_times(self, numbers: dict[str, int]) -> None:
        """Raise Escaped if a file is not the one in the record, or changed while nothing was recorded."""
        for path, number in numbers.items():
            full = os.path.join(self.folder, path)
            status = os.lstat(full)
            if (self.known(status) or (None,))[0] != number:
                raise Escaped(_NOT_SEEN.format(f"`{path}` is another file of the same content"))
            self._stamps.compare(number, status, path)
            real = os.path.realpath(full)
            if not (real + "/").startswith(self.folder + "/") and changed_since(real, self._started):
                raise Escaped(
                    f"`{path}` leads to {real}, outside of the folder, which changed: expected everything that is "
                    "saved inside of the recorded folder; record a folder that holds both"
                )
        if changed := sorted(path or "the folder itself" for path in self._stamps.changed.values()):
            names = ", ".join(f"`{path}`" for path in changed[:5])
            raise Escaped(
                _NOT_SEEN.format(
                    f"by its times {names} changed when nothing was recorded, though its content is the same"
                )
            )

    # Which file is meant

    def path(self, path: Any, folder_fd: int | None = None, *, follow: bool = True) -> str | None:
        """Relative to the folder, "" for itself, or None outside of it. `follow` a symbolic link at the end."""
        path = os.fsdecode(path)
        if folder_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{folder_fd}"), path)
        parent, name = os.path.split(os.path.join(os.getcwd(), path).rstrip("/"))
        real = os.path.realpath(os.path.join(parent, name))
        if not follow and name not in (".", ".."):
            real = os.path.join(os.path.realpath(parent), name)
        if real == self.folder:
            return ""
        return real[len(self.folder) + 1 :] if real.startswith(self.folder + "/") else None

    def find(self, fd: int) -> tuple[int, str] | None:
        """Our number and path of an open file, if it is in the folder."""
        try:
            status = os.fstat(fd)
            file = self.known(status)
            # the system gives the number of a removed file to the next one, wherever that is
            if file is None or not (os.readlink(f"/proc/self/fd/{fd}") + "/").startswith(self.folder + "/"):
                return None
            self._stamps.compare(file[0], status, file[1])
            return file
        except OSError:
            return None

    def known(self, status: os.stat_result) -> tuple[int, str] | None:
        return self._inodes.get((status.st_dev, status.st_ino))

    def note(self, status: os.stat_result, path: str) -> int:
        number = self._next
        self._next += 1
        self._inodes[status.st_dev, status.st_ino] = (number, path)
        self._stamps.note(number, status)
        return number

    def expect(self, *statuses: os.stat_result) -> None:
        for status in statuses:
            if file := self.known(status):
                self._stamps.note(file[0], status)

    def forget(self, path: str | None) -> None:
        full = os.path.join(self.folder, path) if path else None
        if full and os.path.lexists(full) and (file := self.known(os.lstat(full))):
            self._stamps.forget(file[0])

    def target(self, path: str, target: str) -> str:
        return link_target(self.folder, path, target)

    def _start(self) -> Iterator[Entry]:
        for path, content in files_in(self.folder):
            status = os.lstat(os.path.join(self.folder, path))
            file = self.known(status)
            number = file[0] if file else self.note(status, path)
            data, target = (content, None) if isinstance(content, bytes) else (None, content)
            yield Entry(path, number, data, target)


def files_in(folder: str, prefix: str = "") -> Iterator[tuple[str, bytes | str | None]]:
    """Yield everything in a folder, with each folder before its contents."""
    for entry in sorted(os.scandir(os.path.join(folder, prefix)), key=lambda entry: entry.name):
        path = prefix + entry.name
        if entry.is_symlink():
            yield path, link_target(folder, path, os.readlink(entry.path))
        elif entry.is_dir():
            yield path, None
            yield from files_in(folder, path + "/")
        elif entry.is_file():
            with open(entry.path, "rb") as file:
                yield path, file.read()
        else:
            raise ValueError(f"{entry.path} is a device, a socket or a pipe: expected files, folders and links only")


def link_target(folder: str, path: str, target: str) -> str:
    """Return the target of a symbolic link without the folder's path, so that a copy does not lead to the original."""
    if not os.path.isabs(target):
        return target
    parent, name = os.path.split(target.rstrip("/"))
    real = os.path.join(os.path.realpath(parent), name)
    inside = (real + "/").startswith(folder + "/")
    return os.path.relpath(real, os.path.dirname(os.path.join(folder, path))) if inside else target


def compare(expected: Files, actual: Files) -> None:
    """Raise Escaped if the folder differs from the record."""
    wrong = [path for path in sorted(expected.keys() | actual.keys()) if expected.get(path, 0) != actual.get(path, 0)]
    if not wrong:
        return
    words = [_told(path, expected.get(path, 0), actual.get(path, 0)) for path in wrong[:5]]
    more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    raise Escaped(_NOT_SEEN.format("; ".join(words) + more))


def _told(path: str, expected: object, actual: object) -> str:
    if actual == 0:
        return f"`{path}` is gone"
    if not isinstance(actual, bytes):
        return f"`{path}` is a {'folder' if actual is None else 'symbolic link'}"
    if not isinstance(expected, bytes):
        return f"`{path}` has {len(actual)} bytes and was never created"
    return f"`{path}` has {len(actual)} bytes, of which {_unexplained(expected, actual)} were not recorded"


def _unexplained(expected: bytes, actual: bytes) -> int:
    both = min(len(expected), len(actual))
    one, other = (np.frombuffer(content, np.uint8, both) for content in (expected, actual))
    return max(len(expected), len(actual)) - int(np.count_nonzero(one == other))
