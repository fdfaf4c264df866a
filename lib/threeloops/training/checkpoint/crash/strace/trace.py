"""Parser for the output of `strace -f -y -xx -ttt`."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from threeloops.training.checkpoint.crash.recording.record import Escaped

__all__ = ["CALLS", "DESCRIPTOR", "MARK", "STRING", "Call", "calls", "plain_bytes"]

CALLS = (
    "open", "openat", "openat2", "creat", "close", "dup", "dup2", "dup3", "fcntl", "lseek", "read", "readv", "clone",
    "clone3", "fork", "vfork", "chdir", "fchdir", "write", "writev", "pwrite64", "pwritev", "pwritev2", "sendfile",
    "copy_file_range", "splice", "truncate", "ftruncate", "fallocate", "fsync", "fdatasync", "sync", "syncfs",
    "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "unlink",
    "unlinkat", "mkdir", "mkdirat", "rmdir", "mmap", "msync", "io_uring_enter", "io_submit",
)  # fmt: skip

_VARIANTS = {
    "creat": "open", "readv": "read", "writev": "write", "pwrite64": "write", "pwritev": "write", "pwritev2": "write",
    "dup2": "dup", "dup3": "dup", "fdatasync": "fsync", "syncfs": "sync", "rmdir": "unlink",
    "io_submit": "io_uring_enter",
}  # fmt: skip
"""Variants of a call, besides those whose names end in "at" or "at2"."""

MARK = "/dev/null/threeloops-"
"""The beginning of paths that mark a moment. Opening such a path fails and changes nothing, but strace shows it."""
DESCRIPTOR = r"(AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2})*)>(\(deleted\))?"
STRING = r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?'


@dataclass
class Call:
    """A system call in a line of strace. `arguments` is the text in parentheses, `behind` the text after the result."""

    process: int
    time: float
    name: str
    arguments: str
    result: int | None
    """The result, or None if the call has begun and not returned yet."""
    behind: str
    begun: "Call | None"
    """The line in which this call began, if strace wrote one."""
    position: int = 0
    """The number of operations recorded before the call began."""

    @property
    def kind(self) -> str:
        """The name of the call that this one is a variant of."""
        return _VARIANTS.get(self.name) or re.sub("at2?$", "", self.name)

    def number(self, place: int) -> int:
        """Return the number at an argument's place. A negative place counts from the end."""
        words = re.sub(r'"[^"]*"|\[[^\]]*\]|\{[^}]*\}', "", self.arguments).split(", ")
        return int(words[place].split("<")[0], 0)

    @property
    def descriptors(self) -> list[tuple[int, str, bool]]:
        """List the number, the path and whether the file is deleted, for each descriptor among the arguments.

        The number of the working directory is -1.
        """
        matches = re.findall(DESCRIPTOR, self.arguments)
        return [
            (-1 if n == "AT_FDCWD" else int(n), os.fsdecode(plain_bytes(path)), bool(gone)) for n, path, gone in matches
        ]

    @property
    def data(self) -> bytes:
        """The bytes of all strings among the arguments."""
        strings = re.findall(STRING, self.arguments)
        if any(more for _, more in strings):
            raise Escaped(f"strace shows only part of the data of a {self.name}, so the save cannot be replayed")
        return b"".join(plain_bytes(text) for text, _ in strings)


@dataclass
class _Begun:
    text: str
    call: Call


_LINE = re.compile(r"(\d+) +(\d+\.\d+) (.*)")
_CALL = re.compile(r"(\w+)\((.*)\) += (0x[0-9a-f]+|-?\d+|\?)(.*)", re.DOTALL)
_NAME = re.compile(r"(\w+)\(")


def calls(lines: Iterable[str]) -> Iterator[Call]:
    """Yield the calls of a trace in the order of its lines.

    If another process interrupts a call, strace writes two lines for the call. It then comes twice: when it begins,
    without a result, and when it returns.
    """
    begun: dict[int, _Begun] = {}
    for line in lines:
        head = _LINE.match(line.rstrip("\n"))
        if not head:
            continue
        process = int(head[1])
        time = float(head[2])
        text = head[3]
        before = None
        if text.endswith("<unfinished ...>"):
            if name := _NAME.match(text):
                text = text.removesuffix("<unfinished ...>").rstrip()
                begun[process] = _Begun(text, Call(process, time, name[1], text, None, "", None))
                yield begun[process].call
            continue
        if text.startswith("<... "):
            if process not in begun:
                continue
            first = begun.pop(process)
            text = first.text + text.split("resumed>", 1)[1]
            before = first.call
        if whole := _CALL.match(text):
            result = -1 if whole[3] == "?" else int(whole[3], 0)
            marks = re.findall(_MARK_SEEN, whole[2]) if result < 0 else []
            called = plain_bytes(marks[0]).decode() if marks else whole[1]
            yield Call(process, time, called, whole[2], result, whole[4], before)


def plain_bytes(text: str) -> bytes:
    """Decode text that strace wrote with -xx, which shows every byte in hexadecimal."""
    return bytes.fromhex(text.replace("\\x", ""))


_MARK_SEEN = "".join(f"\\\\x{ord(letter):02x}" for letter in MARK) + r'((?:\\x[0-9a-f]{2})+)"'
