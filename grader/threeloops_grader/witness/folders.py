"""Folders of the sandbox that the grader's side fills and reads by itself.

Before the first line of a student's code runs, its process opens a folder in its sandbox and passes the descriptor over
the socket that carries the calls. The grader's side opens every file below this folder itself, without following links,
and limits how much it reads. The student's code can change these files at any time. But it cannot redirect the grader's
side to a file outside the folder.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from threeloops_grader.transport.link import WallError

__all__ = ["Folders", "SandboxFolder", "pass_folder"]

_MAX_BYTES = 64 << 20
_PATH_BYTES = 256
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | _FLAGS


def pass_folder(sock: socket.socket, place: str) -> None:
    """Make a folder in `place` and pass it to the grader's side. The student's process does so before its code runs."""
    path = tempfile.mkdtemp(prefix="folders-", dir=place)
    folder = os.open(path, _DIRECTORY)
    socket.send_fds(sock, [path.encode().ljust(_PATH_BYTES)], [folder])
    os.close(folder)


class Folders:
    """Makes folders inside the one that the student's process has passed."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._passed: tuple[int, Path] | None = None
        self._count = 0

    def receive(self) -> None:
        """Receive the folder, which was passed before the student's code ran. Raises OSError if there is none, which is
        the machine's fault."""
        if self._passed is None:
            path, folders, *_ = socket.recv_fds(self._socket, _PATH_BYTES, 1)
            if len(folders) != 1 or len(path) != _PATH_BYTES:
                raise OSError(errno.EIO, "no folder of the sandbox reached the grader's side")
            self._passed = folders[0], Path(path.decode().rstrip())

    @contextmanager
    def new(self, files: dict[str, bytes | str | None]) -> Iterator[SandboxFolder]:
        """Make a folder that holds `files`, and remove it afterwards.

        Raises WallError if that fails: the student's processes may have filled or removed the folder around it.
        """
        self.receive()
        assert self._passed is not None
        base, path = self._passed
        self._count += 1
        name = str(self._count)
        try:
            folder = SandboxFolder(_made(name, base), path / name)
        except OSError as error:
            raise WallError(f"no folder could be made in the sandbox of this submission ({error})") from None
        try:
            folder.fill(files)
            yield folder
        finally:
            os.close(folder.descriptor)
            with suppress(OSError):
                shutil.rmtree(name, dir_fd=base)


class SandboxFolder:
    """A folder of the sandbox. `path` is its path in the student's process, and means nothing here."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor = descriptor
        self.path = path

    def fill(self, files: dict[str, bytes | str | None]) -> None:
        for name in sorted(files):
            content = files[name]
            with self._parent(name) as (parent, last):
                if content is None:
                    os.close(_made(last, parent))
                elif isinstance(content, str):
                    os.symlink(content, last, dir_fd=parent)
                else:
                    self._write(parent, last, content)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist.

        Raises WallError if this is not a regular file, or if it is too large.
        """
        try:
            with self._parent(name) as (parent, last):
                file = os.open(last, os.O_RDONLY | os.O_NONBLOCK | _FLAGS, dir_fd=parent)
                with os.fdopen(file, "rb", 0) as opened:
                    status = os.fstat(file)
                    if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
                        raise WallError(f"{name} is no file of at most {_MAX_BYTES >> 20} MiB")
                    return _read(opened.fileno(), status.st_size)
        except FileNotFoundError:
            return None

    def shared(self, name: str, size: int) -> mmap.mmap:
        """Make a file of `size` bytes and map it, so that each side sees the other's changes."""
        with self._parent(name) as (parent, last):
            file = self._write(parent, last, bytes(size), keep=True)
            try:
                return mmap.mmap(file, size)
            finally:
                os.close(file)

    @contextmanager
    def _parent(self, name: str) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the folder that contains `name`, and the last part of `name`.

        Raises FileNotFoundError or WallError.
        """
        *parents, last = name.split("/")
        folder = os.dup(self.descriptor)
        try:
            for part in parents:
                inner = os.open(part, _DIRECTORY, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder, last
        except FileNotFoundError:
            raise
        except OSError as error:
            raise WallError(f"{name} could not be used in the sandbox of this submission ({error})") from None
        finally:
            os.close(folder)

    def _write(self, parent: int, name: str, content: bytes, *, keep: bool = False) -> int:
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666, dir_fd=parent)
        try:
            os.fchmod(file, 0o666)  # the student's processes belong to another user
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(file, rest) :]
            return file if keep else -1
        finally:
            if not keep:
                os.close(file)


def _made(name: str, parent: int) -> int:
    """Make a folder and return its descriptor."""
    os.mkdir(name, dir_fd=parent)
    folder = os.open(name, _DIRECTORY, dir_fd=parent)
    os.fchmod(folder, 0o777)
    return folder


def _read(file: int, size: int) -> bytes:
    """Read at most `size` bytes, even if the file grows meanwhile."""
    parts = []
    while size and (part := os.read(file, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
