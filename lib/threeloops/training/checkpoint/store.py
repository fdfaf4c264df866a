"""Stores of checkpoints: a folder or an object store, each with the one order of operations that survives a crash.

A checkpoint is begun, its files are written, and it is committed. `directories()` lists it only after the commit.

- A file system may lose whatever was not fsynced, and may write names in any order (Pillai et al. 2014, "All File
  Systems Are Not Created Equal"; fsync(2): fsync of a file does not make its name durable). So the files are written
  to a folder with a temporary name and fsynced. Then that folder is fsynced and renamed, and its parent is fsynced.
- An object store has no rename, and each put succeeds or fails as a whole. So the manifest is put last: without one
  there is no checkpoint.

In both, the pointer to the newest checkpoint follows at the very end. It is only a hint: see `Checkpointer.load`.
"""

import ctypes
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from threeloops.files import sync
from threeloops.training.checkpoint.manifest import committed_as, step_of

__all__ = ["LocalStore", "ObjectStore", "Store"]

_MANIFEST = "manifest.json"
_POINTER = "latest"
_BEGUN = ".tmp"
_LEAVING = ".leaving.tmp"


_BUFFER = 1 << 18
_WRITEBACK = 1 << 24
"""Bytes of small chunks that are written at once, and of the stretches that the disk writes meanwhile."""
_LIBC = ctypes.CDLL(None)
_SYNC_FILE_RANGE_WRITE = 2


class Store(Protocol):
    """The interface that a checkpointer needs. Errors are OSError, and FileNotFoundError if something does not exist.

    An attempt is the name of a directory and, after a dot, a word that no other attempt has (see `attempt_at`). So two
    attempts to save the same step never write to the same place.
    """

    def begin(self, attempt: str) -> None:
        """Make room for a checkpoint. This removes the remains of earlier attempts, which can then no longer commit."""

    def write(self, attempt: str, name: str, chunks: Iterable[bytes | memoryview]) -> str:
        """Write a file of a checkpoint that was begun. When this returns, its data survive a crash. Returns the name
        that the file has in the checkpoint."""

    def note(self, attempt: str, name: str, data: bytes) -> None:
        """Leave a note for the ranks that write the same checkpoint. It is not durable, and the commit removes it."""

    def read_note(self, attempt: str, name: str) -> bytes:
        """Read another rank's complete note, or raise FileNotFoundError."""

    def abort(self, attempt: str) -> None:
        """Remove the files of the attempt."""

    def commit(self, attempt: str, manifest: bytes) -> None:
        """Turn the attempt into a checkpoint. Before this call the checkpoint does not exist, and when it returns the
        checkpoint survives a crash."""

    def point(self, directory: str) -> None:
        """Say that this is the newest."""

    def pointer(self) -> str:
        """Return the last value given to `point`, or ""."""

    def directories(self) -> list[str]:
        """Return the directories of all checkpoints."""

    def manifest(self, directory: str) -> bytes:
        """Return the manifest that `commit` was given."""

    def size(self, directory: str, name: str) -> int:
        """Bytes of a file."""

    def read(self, directory: str, name: str, offset: int, into: memoryview) -> None:
        """Fill `into`. Raises EOFError if the file ends before."""

    def remove(self, directory: str) -> None:
        """Remove a checkpoint. If this is interrupted, the checkpoint is either complete or no longer listed."""


class LocalStore:
    """Checkpoints in a folder of a file system that keeps what was fsynced. On several machines the file system is
    shared."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        made = [folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        for created in made:
            sync(created.parent)  # or a crash may lose the folder with all that is in it

    def __str__(self) -> str:
        return str(self.folder)

    def begin(self, attempt: str) -> None:
        (self.folder / (_POINTER + _BEGUN)).unlink(missing_ok=True)
        for abandoned in self.folder.glob(f"*{_BEGUN}"):
            if step_of(committed_as(abandoned.name)):  # others are not ours
                # By another name first: somebody may still write to it, and must not commit the half that is left.
                leaving = (
                    abandoned if abandoned.name.endswith(_LEAVING) else abandoned.with_name(abandoned.name + _LEAVING)
                )
                with suppress(OSError):
                    abandoned.rename(leaving)
                shutil.rmtree(leaving, ignore_errors=True)
        (self.folder / (attempt + _BEGUN)).mkdir()

    def write(self, attempt: str, name: str, chunks: Iterable[bytes | memoryview]) -> str:
        with (self.folder / (attempt + _BEGUN) / name).open("xb", buffering=_BUFFER) as file:
            begun = at = 0
            for chunk in chunks:
                at += file.write(chunk)
                if at - begun >= _WRITEBACK:
                    _begin_writeback(file.fileno(), begun, at - begun)
                    begun = at
            file.flush()
            os.fsync(file.fileno())
        return name

    def note(self, attempt: str, name: str, data: bytes) -> None:
        path = self.folder / (attempt + _BEGUN) / f"note-{name}"
        half = path.with_name(f"half-{name}")
        half.write_bytes(data)
        half.rename(path)

    def read_note(self, attempt: str, name: str) -> bytes:
        return (self.folder / (attempt + _BEGUN) / f"note-{name}").read_bytes()

    def abort(self, attempt: str) -> None:
        shutil.rmtree(self.folder / (attempt + _BEGUN), ignore_errors=True)

    def commit(self, attempt: str, manifest: bytes) -> None:
        begun = self.folder / (attempt + _BEGUN)
        for note in [*begun.glob("note-*"), *begun.glob("half-*")]:
            note.unlink()
        self.write(attempt, _MANIFEST, [manifest])
        sync(begun)
        begun.rename(self.folder / committed_as(attempt))
        sync(self.folder)

    def point(self, directory: str) -> None:
        half = self.folder / (_POINTER + _BEGUN)
        with half.open("wb") as file:
            file.write(directory.encode())
            file.flush()
            os.fsync(file.fileno())
        half.replace(self.folder / _POINTER)
        sync(self.folder)

    def pointer(self) -> str:
        try:
            return (self.folder / _POINTER).read_bytes()[:100].decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def directories(self) -> list[str]:
        return [path.name for path in self.folder.iterdir() if step_of(path.name)]

    def manifest(self, directory: str) -> bytes:
        return (self.folder / directory / _MANIFEST).read_bytes()

    def size(self, directory: str, name: str) -> int:
        return (self.folder / directory / name).stat().st_size

    def read(self, directory: str, name: str, offset: int, into: memoryview) -> None:
        # Read, not mapped: a bad sector below a mapping kills the process with SIGBUS, below a read it is an error.
        descriptor = os.open(self.folder / directory / name, os.O_RDONLY)
        try:
            while len(into):
                if not (got := os.preadv(descriptor, [into], offset)):
                    raise EOFError(f"{directory}/{name} ends at {offset}")
                into = into[got:]
                offset += got
        finally:
            os.close(descriptor)

    def remove(self, directory: str) -> None:
        # By another name first: a checkpoint that is half removed must not look like one.
        leaving = self.folder / (directory + _BEGUN)
        (self.folder / directory).rename(leaving)
        sync(self.folder)
        shutil.rmtree(leaving)


def _begin_writeback(descriptor: int, offset: int, length: int) -> None:
    """Ask the disk to begin writing these bytes of a file, if the system can do that. A later fsync then takes less
    time. This is only a hint: nothing is durable before the fsync."""
    if begin := getattr(_LIBC, "sync_file_range", None):
        begin(descriptor, ctypes.c_int64(offset), ctypes.c_int64(length), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE))


class ObjectStore:
    """Checkpoints below a URL of any file system that fsspec knows: s3://bucket/run, gs://…, memory://….

    Args:
        options: for fsspec's file system, as `key`, `secret` or `endpoint_url`.
    """

    def __init__(self, url: str, **options: Any) -> None:
        import fsspec

        self._files, self._root = fsspec.core.url_to_fs(url, **options)
        self._root = self._root.rstrip("/")

    def __str__(self) -> str:
        return str(self._files.unstrip_protocol(self._root))

    def begin(self, attempt: str) -> None:
        for path in self._list():
            if step_of(path) and not self._exists(f"{path}/{_MANIFEST}"):
                self._remove(path)
        self.note(attempt, "begun", b"")

    def write(self, attempt: str, name: str, chunks: Iterable[bytes | memoryview]) -> str:
        path = self._own(attempt, name)
        file = self._files.open(self._at(path), "wb")
        try:
            for chunk in chunks:
                file.write(chunk)
            file.close()
        except BaseException:
            with suppress(Exception):  # an upload in parts is cancelled, and not completed by a later close
                file.discard()
                file.closed = True
            raise
        return path.rpartition("/")[2]

    def note(self, attempt: str, name: str, data: bytes) -> None:
        self._files.pipe_file(self._at(self._own(attempt, f"note-{name}")), data)

    def read_note(self, attempt: str, name: str) -> bytes:
        return self._cat(self._own(attempt, f"note-{name}"))

    def abort(self, attempt: str) -> None:
        self._remove_own(attempt, "")

    def commit(self, attempt: str, manifest: bytes) -> None:
        self.read_note(attempt, "begun")  # or another attempt has removed what this one wrote
        self._files.pipe_file(self._at(f"{committed_as(attempt)}/{_MANIFEST}"), manifest)
        self._remove_own(attempt, "note-")

    def point(self, directory: str) -> None:
        self._files.pipe_file(self._at(_POINTER), directory.encode())

    def pointer(self) -> str:
        try:
            return self._cat(_POINTER)[:100].decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def directories(self) -> list[str]:
        return [path for path in self._list() if step_of(path) and self._exists(f"{path}/{_MANIFEST}")]

    def manifest(self, directory: str) -> bytes:
        return self._cat(f"{directory}/{_MANIFEST}")

    def size(self, directory: str, name: str) -> int:
        self._files.invalidate_cache()
        return int(self._files.size(self._at(f"{directory}/{name}")))

    def read(self, directory: str, name: str, offset: int, into: memoryview) -> None:
        data = self._files.cat_file(self._at(f"{directory}/{name}"), start=offset, end=offset + len(into))
        if len(data) != len(into):
            raise EOFError(f"{directory}/{name} ends at {offset + len(data)}")
        into[:] = data

    def remove(self, directory: str) -> None:
        self._files.rm_file(self._at(f"{directory}/{_MANIFEST}"))  # first: then it is no checkpoint
        self._remove(directory)

    def _own(self, attempt: str, name: str) -> str:
        """Return the key of an attempt's file. An object store has no rename, so the file has a name of its own in the
        checkpoint's directory from the start."""
        directory, _, word = attempt.partition(".")
        return f"{directory}/{word}-{name}" if word else f"{directory}/{name}"

    def _remove_own(self, attempt: str, prefix: str) -> None:
        directory, _, first = self._own(attempt, prefix).rpartition("/")
        for path in self._list(directory):
            if path.startswith(first):
                self._files.rm_file(self._at(f"{directory}/{path}"))

    def _remove(self, directory: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm(self._at(directory), recursive=True)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _cat(self, path: str) -> bytes:
        return bytes(self._files.cat_file(self._at(path)))

    def _exists(self, path: str) -> bool:
        self._files.invalidate_cache()
        return bool(self._files.exists(self._at(path)))

    def _list(self, directory: str = "") -> list[str]:
        self._files.invalidate_cache()
        try:
            paths = self._files.ls(f"{self._root}/{directory}".rstrip("/"), detail=False)
        except FileNotFoundError:
            return []
        return [path.rstrip("/").rpartition("/")[2] for path in paths]
