"""Measure how much memory processes allocate, from outside, so that none of them can report less.

For each process the kernel keeps the largest resident size that it has had. A fork begins with the size of its parent.
If it writes to one of these pages, it gets a copy in place of the page, so its size stays the same. The growth from the
size at the first look to the largest size is therefore the memory that the process has allocated itself. Two other
things would disturb this: pages of libraries that the process touches for the first time, and memory that its allocator
keeps after it was freed. The process calls `settle` before the first look to exclude both. On Linux with glibc the
result is right to about 2 MiB for a process that uses torch.

Everything in the address space counts: tensors, arrays, bytes, shared memory. Pages that the process has copied from
its parent count only above 16 MiB: a process copies several MiB of them without allocating anything, because Python
counts references in the objects themselves.

A process that wants to hide memory has to keep it in a file, in a pipe or a message under way, in up to 16 MiB that the
parent prepared, in the parent itself, or in another process that is gone before the second look. Or it can unmap pages
of libraries after the first look, as many as it allocates, and free its memory before the second look. A process that
may write to /proc can also make the kernel forget the largest size (`clear_refs`); in the sandbox /proc is read-only.

The kernel can evict pages of libraries by itself when memory is short. If it does so between `settle` and the first
look, these pages count when they return, so a growth that seems too large is worth a second measurement.
"""

import ctypes
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["ResidentMemory", "own_bytes", "settle", "use_huge_pages"]

_HUGE = 2 << 20

_MADV_POPULATE_READ = 22
_MADV_COLLAPSE = 25
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_BLOCK = 64 << 10
_SAME_PROGRAM = 0.9
"""A largest size below this share of an earlier size is another program's; the kernel's counters are not exact."""
_LEFT_OUT = "/libtriton.so"
"""A compiler of 170 MiB. Whose memory is measured does not compile, and to map it takes a third of the time."""
_COPIED_KILOBYTES = 16 << 10
"""Pages of its parent that a process copies when it uses torch, without allocating anything: 8 MiB, measured."""


class ResidentMemory:
    """Processes as they are now. Later `growth()` says by how many bytes each one has grown at most since then."""

    def __init__(self, processes: Sequence[int]) -> None:
        self._before = {
            process: (_kilobytes(process, b"VmRSS"), _own_kilobytes(process), _unshared_kilobytes(process))
            for process in processes
        }

    @property
    def processes(self) -> list[int]:
        return list(self._before)

    def growth(self) -> list[int]:
        """Return how much each process has grown, in order. Raises ProcessLookupError if one of them has ended, or has
        become another program, whose largest size says nothing about the one before.

        The kernel may take pages of files away meanwhile, which makes the largest size smaller than it was; so what a
        process holds now counts by itself as well."""
        growths = []
        for process, (before, own, unshared) in self._before.items():
            largest = _kilobytes(process, b"VmHWM")
            if largest < _SAME_PROGRAM * before:
                raise ProcessLookupError(f"process {process} has become another program")
            taken = _own_kilobytes(process) - own
            copied = 0
            if unshared is not None:
                copied = (_unshared_kilobytes(process) or 0) - unshared - max(0, taken) - _COPIED_KILOBYTES
            growths.append((max(0, largest - before, taken) + max(0, copied)) << 10)
        return growths


def own_bytes(process: int) -> int:
    """Bytes of a process that are no file's, those that it shares with its parent included."""
    return _own_kilobytes(process) << 10


class _Mapping(NamedTuple):
    """Addresses of this process, `end` not included; `access` as in "r-xp", `path` is "" where no file is mapped."""

    start: int
    end: int
    access: str
    path: str

    def advise(self, advice: int) -> None:
        """`madvise`; what a kernel does not know it leaves undone."""
        libc = ctypes.CDLL(None)
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.madvise(self.start, self.end - self.start, advice)


def _mappings() -> Iterator[_Mapping]:
    """Yield this process's current mappings, or none on systems that do not tell."""
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else ():
        addresses, access, _, _, _, *path = line.split(maxsplit=5)
        start, end = (int(word, 16) for word in addresses.split("-"))
        yield _Mapping(start, end, access, path[0] if path else "")


def use_huge_pages() -> None:
    """Move the memory that this process has now into pages of 2 MiB. New memory comes in small pages as before.

    A processor remembers the addresses of a few thousand pages. A step of decoding on a CPU reads more memory than
    4 KiB pages of that number hold, so it looks most of them up again, which takes long in a virtual machine.
    Moving takes about 1 ms per MiB, and up to 4 ms on a busy machine. Kernels before Linux 6.1, and other systems,
    leave the memory as it is.
    """
    for mapping in _mappings():
        inside = mapping._replace(start=-(-mapping.start // _HUGE) * _HUGE, end=mapping.end // _HUGE * _HUGE)
        if mapping.access == "rw-p" and not mapping.path.startswith("/") and inside.start < inside.end:
            inside.advise(_MADV_COLLAPSE)


def settle() -> None:
    """Prepare this process for a look from outside: have all pages of its libraries mapped, and every block of 64 KiB
    or more taken from the kernel and given back at once. Does nothing on other systems.

    Files that are mapped to be shared are no libraries, and Triton's compiler is left out."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for option, value in ((_M_MMAP_THRESHOLD, _BLOCK), (_M_TRIM_THRESHOLD, _BLOCK), (_M_TOP_PAD, 0)):
            libc.mallopt(option, value)
    for mapping in _mappings():
        is_library = mapping.path.startswith("/") and mapping.access.startswith("r") and mapping.access.endswith("p")
        if is_library and not mapping.path.endswith(_LEFT_OUT):
            mapping.advise(_MADV_POPULATE_READ)  # kernels before 5.14 refuse: then pages count


def _own_kilobytes(process: int) -> int:
    return _kilobytes(process, b"RssAnon") + _kilobytes(process, b"RssShmem")


def _unshared_kilobytes(process: int) -> int | None:
    """Return the size of the written pages that no other process has, or None if the kernel does not tell.

    Pages that nobody wrote are left out. They are libraries', and become private when another process ends."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_bytes()
    except OSError:
        return None
    match = re.search(rb"^Private_Dirty:\s+(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) if match else None


def _kilobytes(process: int, field: bytes) -> int:
    """A field of a process's status, whose first line is a name that the process may choose."""
    try:
        text = Path(f"/proc/{process}/status").read_bytes()
    except OSError:
        text = b""
    match = re.search(rb"^%b:\s+(\d+) kB$" % field, text, re.MULTILINE)
    if not match:  # a process that has ended has no memory, and until it is waited for a status
        raise ProcessLookupError(f"process {process} has ended")
    return int(match[1])
