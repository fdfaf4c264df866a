"""Replacements of `open` and of the functions of `os` that change files, so that a recorder sees their operations."""

import errno
import fcntl
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from threeloops.training.checkpoint.crash.model.operations import (
    Create,
    HardLink,
    MakeFolder,
    MakeLink,
    Operation,
    Remove,
    RemoveFolder,
    Rename,
    Sync,
    SyncAll,
    Truncate,
    Write,
)
from threeloops.training.checkpoint.crash.recording.files import open_recorded, writes

__all__ = ["NAMELESS", "Notes", "installed"]


NAMELESS = "(a file without a name)"


class Notes(Protocol):
    """The methods that a recorder must have."""

    folder: str
    lock: Any

    def add(self, operation: Operation) -> None:
        """Record an operation that is done."""

    def write(self, operation: Write) -> int:
        """Record a write that is about to happen, as far as the disk takes it, and return how many bytes that is."""

    def sync(self, operation: Sync | SyncAll) -> None:
        """Record an fsync that is done, or raise an OSError if the disk fails."""

    def lose(self, number: int) -> None:
        """Record that an fsync of this file has failed."""

    def path(self, path: Any, folder_fd: int | None = None, *, follow: bool = True) -> str | None:
        """Return the path relative to the folder, or None if it is outside."""

    def find(self, fd: int) -> tuple[int, str] | None:
        """Return the number and path of an open file in the folder."""

    def known(self, status: os.stat_result) -> tuple[int, str] | None:
        """Return the number and path of the file that has this status."""

    def note(self, status: os.stat_result, path: str) -> int:
        """A number for a new file or folder."""

    def forget(self, path: str | None) -> None:
        """Note that a file is about to lose this name. The recorder does not know its other names."""

    def target(self, path: str, target: str) -> str:
        """Return the target of a symbolic link, as it must read in a copy of the folder."""

    def expect(self, *statuses: os.stat_result) -> None:
        """Note that these files and folders changed in ways that are recorded already, or that make no difference after
        a crash."""


@contextmanager
def installed(recorder: Notes) -> Iterator[None]:
    """Replace functions that change files, in the whole process, within the block."""
    calls = _Calls(recorder)
    plain_open = io.open
    plain = {name: getattr(os, name) for name in dir(_Calls) if not name.startswith("_") and hasattr(os, name)}

    def guarded(plain: Callable, recorded: Callable) -> Callable:
        def call(*arguments: Any, **keywords: Any) -> Any:
            with recorder.lock:
                return recorded(plain, *arguments, **keywords)

        return call

    def recorded_open(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
        if isinstance(mode, str) and writes(mode):
            inside = recorder.find(file) if isinstance(file, int) else recorder.path(file)
            if inside is not None or keywords.get("opener"):
                return open_recorded(file, mode, *arguments, **keywords)
        return plain_open(file, mode, *arguments, **keywords)

    recorded = {name: guarded(function, getattr(calls, name)) for name, function in plain.items()}
    pairs = [*((plain[name], recorded[name]) for name in plain), (plain_open, recorded_open)]
    # the one place in the standard library that keeps a function of `os` as a default
    closer = tempfile._TemporaryFileCloser  # type: ignore[attr-defined]
    closing = [method for method in vars(closer).values() if plain["unlink"] in _defaults(method)]
    try:
        _rebind({id(old): new for old, new in pairs})
        for method in closing:
            method.__defaults__ = tuple(recorded["unlink"] if d is plain["unlink"] else d for d in method.__defaults__)
        yield
    finally:
        _rebind({id(new): old for old, new in pairs})
        for method in closing:
            method.__defaults__ = tuple(plain["unlink"] if d is recorded["unlink"] else d for d in method.__defaults__)


def _rebind(functions: dict[int, Callable]) -> None:
    """Replace functions, given by their ids, under every name that a module has for them: `posix.fsync`, a name that a
    cell or a library imported with `from os import fsync`, or IPython's own `open`."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict and not functions.keys().isdisjoint(map(id, names.values())):
            for name, value in list(names.items()):
                if id(value) in functions:
                    names[name] = functions[id(value)]


def _defaults(function: Any) -> tuple:
    return getattr(function, "__defaults__", None) or ()


class _Calls:
    """A method for each function of `os` that changes files: takes the plain function, and its arguments."""

    def __init__(self, recorder: Notes) -> None:
        self._recorder = recorder
        self._add = recorder.add

    def open(self, plain, path, flags, mode=0o777, *, dir_fd=None):
        inside = self._recorder.path(path, dir_fd, follow=not flags & os.O_NOFOLLOW)
        full = inside is not None and os.path.join(self._recorder.folder, inside)
        nameless = flags & os.O_TMPFILE == os.O_TMPFILE
        creates = bool(full) and flags & os.O_CREAT and not os.path.lexists(full)
        size = os.path.getsize(full) if full and flags & os.O_TRUNC and not creates and os.path.exists(full) else 0
        fd = plain(path, flags, mode, dir_fd=dir_fd)
        if inside is not None and (nameless or creates):
            number = self._recorder.note(os.fstat(fd), NAMELESS if nameless else inside)
            self._add(Create(number, None if nameless else inside))
        elif flags & os.O_TRUNC and full and (file := self._recorder.known(os.fstat(fd))):
            self._recorder.expect(os.fstat(fd))
            if size:
                self._add(Truncate(*file, 0))
        return fd

    def write(self, plain, fd, data):
        if (file := self._recorder.find(fd)) is None:
            return plain(fd, data)
        appends = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND
        offset = os.fstat(fd).st_size if appends else os.lseek(fd, 0, os.SEEK_CUR)
        return self._write(lambda part: plain(fd, part), fd, file, offset, data)

    def writev(self, plain, fd, buffers):
        buffers = list(buffers)
        if self._recorder.find(fd) is None:
            return plain(fd, buffers)
        return os.write(fd, b"".join(buffers))

    def pwrite(self, plain, fd, data, offset):
        if (file := self._recorder.find(fd)) is None:
            return plain(fd, data, offset)
        appends = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND  # on Linux, pwrite then appends: see pwrite(2), Bugs
        at = os.fstat(fd).st_size if appends else offset
        return self._write(lambda part: plain(fd, part, offset), fd, file, at, data)

    def pwritev(self, plain, fd, buffers, offset, flags=0):
        buffers = list(buffers)
        if self._recorder.find(fd) is None:
            return plain(fd, buffers, offset, flags)
        return os.pwrite(fd, b"".join(buffers), offset)

    def sendfile(self, plain, out_fd, in_fd, offset, count):
        """Record a sendfile as the read and the write that it does."""
        if self._recorder.find(out_fd) is None:
            return plain(out_fd, in_fd, offset, count)
        data = os.read(in_fd, count) if offset is None else os.pread(in_fd, count, offset)
        return os.write(out_fd, data) if data else 0

    def copy_file_range(self, plain, src, dst, count, offset_src=None, offset_dst=None):
        if self._recorder.find(dst) is None:
            return plain(src, dst, count, offset_src, offset_dst)
        data = os.read(src, count) if offset_src is None else os.pread(src, count, offset_src)
        if not data:
            return 0
        return os.write(dst, data) if offset_dst is None else os.pwrite(dst, data, offset_dst)

    def truncate(self, plain, path, length):
        if isinstance(path, int):
            return os.ftruncate(path, length)
        inside = self._recorder.path(path)
        plain(path, length)
        if inside is not None and (file := self._recorder.known(os.stat(path))):
            self._recorder.expect(os.stat(path))
            self._add(Truncate(*file, length))
        return None

    def ftruncate(self, plain, fd, length):
        file = self._recorder.find(fd)
        plain(fd, length)
        if file:
            self._recorder.expect(os.fstat(fd))
            self._add(Truncate(*file, length))

    def posix_fallocate(self, plain, fd, offset, length):
        file = self._recorder.find(fd)
        before = os.fstat(fd).st_size
        plain(fd, offset, length)
        if file:
            self._recorder.expect(os.fstat(fd))
            if offset + length > before:
                self._add(Truncate(*file, offset + length))

    def fsync(self, plain, fd):
        self._sync(plain, fd)

    def fdatasync(self, plain, fd):
        self._sync(plain, fd, data_only=True)

    def sync(self, plain):
        plain()
        self._recorder.sync(SyncAll())

    def rename(self, plain, src, dst, *, src_dir_fd=None, dst_dir_fd=None):
        old = self._name(src, src_dir_fd)
        new = self._name(dst, dst_dir_fd)
        self._recorder.forget(new)
        plain(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if old is not None and new is not None:
            self._add(Rename(old, new))

    replace = rename

    def unlink(self, plain, path, *, dir_fd=None):
        inside = self._name(path, dir_fd)
        self._recorder.forget(inside)
        plain(path, dir_fd=dir_fd)
        if inside is not None:
            self._add(Remove(inside))

    remove = unlink

    def mkdir(self, plain, path, mode=0o777, *, dir_fd=None):
        inside = self._name(path, dir_fd)
        plain(path, mode, dir_fd=dir_fd)
        if inside is not None:
            self._add(MakeFolder(self._recorder.note(self._status(inside), inside), inside))

    def rmdir(self, plain, path, *, dir_fd=None):
        inside = self._name(path, dir_fd)
        plain(path, dir_fd=dir_fd)
        if inside is not None:
            self._add(RemoveFolder(inside))

    def link(self, plain, src, dst, *, src_dir_fd=None, dst_dir_fd=None, follow_symlinks=True):
        inside = self._name(dst, dst_dir_fd)
        plain(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)
        if inside is not None and (file := self._recorder.known(self._status(inside))):
            self._add(HardLink(file[0], inside))

    def symlink(self, plain, src, dst, target_is_directory=False, *, dir_fd=None):
        inside = self._name(dst, dir_fd)
        plain(src, dst, target_is_directory, dir_fd=dir_fd)
        if inside is not None:
            target = self._recorder.target(inside, os.fsdecode(src))
            self._add(MakeLink(self._recorder.note(self._status(inside), inside), inside, target))

    # What changes the times of a file and nothing that a crash could take

    def chmod(self, plain, path, *arguments, **keywords):
        self._harmless(plain, path, *arguments, **keywords)

    fchmod = chown = fchown = lchown = utime = setxattr = removexattr = chmod

    # What they share

    def _harmless(self, plain, path, *arguments, **keywords):
        if isinstance(path, int):
            inside: list[Any] = [path] if self._recorder.find(path) is not None else []
            status: Callable[[Any], os.stat_result] = os.fstat
        else:
            ways = [self._recorder.path(path, keywords.get("dir_fd"), follow=follow) for follow in (True, False)]
            inside = [way for way in ways if way is not None]
            status = self._status
        plain(path, *arguments, **keywords)
        if inside:
            self._recorder.expect(*map(status, inside))

    def _name(self, path: Any, folder_fd: int | None) -> str | None:
        return self._recorder.path(path, folder_fd, follow=False)

    def _status(self, inside: str) -> os.stat_result:
        return os.lstat(os.path.join(self._recorder.folder, inside))

    def _write(self, plain: Callable, fd: int, file: tuple[int, str], offset: int, data: Any) -> int:
        data = bytes(memoryview(data).cast("B"))
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        if not data or flags & os.O_ACCMODE == os.O_RDONLY:
            return plain(data)
        count = self._recorder.write(Write(*file, offset, data))
        if plain(data[:count]) != count:
            raise OSError(errno.EIO, "this disk took less than is recorded")
        self._recorder.expect(os.fstat(fd))
        if flags & os.O_DSYNC:  # a part of O_SYNC
            self._sync_known(file, flags & os.O_SYNC != os.O_SYNC)
        return count

    def _sync(self, plain: Callable, fd: Any, data_only: bool = False) -> None:
        file = self._recorder.find(fd if isinstance(fd, int) else fd.fileno())
        if file is None:
            plain(fd)
        else:
            self._sync_known(file, data_only, lambda: plain(fd))

    def _sync_known(self, file: tuple[int, str], data_only: bool, plain: Callable = lambda: None) -> None:
        try:
            plain()
        except OSError:
            self._recorder.lose(file[0])
            raise
        self._recorder.sync(Sync(*file, data_only))
