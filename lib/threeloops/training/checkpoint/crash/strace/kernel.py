"""Conversion of system calls to the operations that they performed on a folder."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from threeloops.training.checkpoint.crash.model.disk import Disk
from threeloops.training.checkpoint.crash.model.operations import (
    ROOT,
    Create,
    Entry,
    HardLink,
    MakeFolder,
    MakeLink,
    Operation,
    Record,
    Remove,
    RemoveFolder,
    Rename,
    Saved,
    Sync,
    SyncAll,
    Truncate,
    Write,
    paths,
)
from threeloops.training.checkpoint.crash.recording.calls import NAMELESS
from threeloops.training.checkpoint.crash.recording.record import Escaped, link_target
from threeloops.training.checkpoint.crash.strace.processes import FORKS, Mapped, Open, Process, Processes
from threeloops.training.checkpoint.crash.strace.trace import STRING, Call, plain_bytes

__all__ = ["Kernel"]


class Kernel(Processes):
    """Tracker of a folder's files, which turns each system call into operations of a record."""

    def __init__(self, folder: str, start: list[Entry], working_directory: str) -> None:
        super().__init__(folder, working_directory)
        self.start = start
        self.operations: list[Operation] = []
        self._disk = Disk(start)
        self._names = {"": ROOT} | {entry.path: entry.inode for entry in start}
        self._gone = dict[str, int]()
        self._next = max(self._names.values()) + 1
        self._mapped: dict[tuple[int, int], Mapped] = {}
        self._synced_outside = set[str]()
        self._began = False

    def record(self, calls: Iterable[Call]) -> Record:
        for call in calls:
            self._follow(call)
        if not self._returns():
            raise Escaped("the traced process ended before the save returned")
        for mapped in {mapped.number: mapped for mapped in self._mapped.values()}.values():
            self._add_mapped(mapped)
        if self._returns()[-1] - 1 in self._returns():  # the function ended at once after the `yield` of its last save
            del self.operations[self._returns()[-1]]
        return Record(self.start, self.operations)

    def _follow(self, call: Call) -> None:
        process = self._process(call)
        if call.result is None:
            call.position = len(self.operations)
            if call.name in FORKS:
                self._forking.append(call)
            return
        if call.name == "begin":
            self._began = True
        elif call.name == "saved":
            self._add(Saved())
        elif call.result >= 0:
            if method := getattr(self, f"_{call.kind}", None):
                method(call, process)
            elif call.name in FORKS:
                self._fork(call, process)

    def _open(self, call: Call, process: Process) -> None:
        super()._open(call, process)
        flags = call.arguments
        match = re.match(r"<([^>]*)>", call.behind)
        path = os.fsdecode(plain_bytes(match[1])) if match else ""
        inside = self._inside(path)
        if not self._began or inside is None or not match:
            return
        if "O_TMPFILE" in flags:
            self._gone[inside] = self._number()
            self._add(Create(self._gone[inside], None))
        elif inside not in self._names:
            if "O_CREAT" in flags or call.name == "creat":
                self._names[inside] = self._number()
                self._add(Create(self._names[inside], inside))
        elif ("O_TRUNC" in flags or call.name == "creat") and self._size(self._names[inside]):
            self._add(Truncate(self._names[inside], inside, 0))

    # Contents

    def _write(self, call: Call, process: Process) -> None:
        file, target = self._target(call, process)
        count = call.result or 0
        if file and call.name in ("write", "writev"):
            offset = file.offset
            file.offset += count
        elif call.name in ("write", "writev"):
            return
        else:
            offset = call.number(-2 if call.name == "pwritev2" else -1)
        if target is None or not count:
            self._synced_outside -= {path for _, path, _ in call.descriptors}
            return
        appends = (file and "O_APPEND" in file.flags) or "RWF_APPEND" in call.arguments
        self._wrote(call, target, file, self._size(target[0]) if appends else offset, call.data[:count])
        if appends and file:
            file.offset = self._size(target[0])

    def _wrote(self, call: Call, target: tuple[int, str], file: Open | None, offset: int, data: bytes) -> None:
        self._add(Write(*target, offset, data))
        flags = file.flags if file else ""
        if "O_SYNC" in flags or "O_DSYNC" in flags or "RWF_SYNC" in call.arguments or "RWF_DSYNC" in call.arguments:
            self._add(Sync(*target, data_only="O_SYNC" not in flags and "RWF_SYNC" not in call.arguments))

    def _sendfile(self, call: Call, process: Process) -> None:
        self._copy(call, process, 0, 1, None, None)

    def _copy_file_range(self, call: Call, process: Process) -> None:
        offsets = re.findall(r", (NULL|\[\d+\](?: => \[\d+\])?)", call.arguments)
        old, new = (None if offset == "NULL" else int(re.findall(r"\d+", offset)[0]) for offset in offsets)
        self._copy(call, process, 1, 0, old, new)

    def _splice(self, call: Call, process: Process) -> None:
        if self._began and any(self._inside(path) for _, path, _ in call.descriptors[1:]):
            raise Escaped("the save wrote with splice, whose data strace does not show")

    def _copy(
        self, call: Call, process: Process, out: int, source: int, source_offset: int | None, offset: int | None
    ) -> None:
        descriptors = call.descriptors
        count = call.result or 0
        files = [process.files.get(number) for number, _, _ in descriptors]
        if call.name == "sendfile" and (given := re.search(r"\[(\d+)\]", call.arguments)):
            source_offset = int(given[1])
        read = files[source]
        written = files[out]
        start = source_offset if source_offset is not None else (read.offset if read else 0)
        if source_offset is None and read:
            read.offset += count
        at = offset if offset is not None else (written.offset if written else 0)
        if offset is None and written:
            written.offset += count
        target = self._file(*descriptors[out][1:])
        if target is None or not count or not self._began:
            return
        origin = self._file(*descriptors[source][1:])
        content = self._disk.inodes[origin[0]].latest if origin else _read(descriptors[source][1])
        self._wrote(call, target, written, at, bytes(content[start : start + count]))

    def _truncate(self, call: Call, process: Process) -> None:
        path = self._inside(os.path.realpath(os.path.join(process.folder, os.fsdecode(call.data))))
        if self._began and path in self._names:
            self._add(Truncate(self._names[path], path, call.number(-1)))

    def _ftruncate(self, call: Call, process: Process) -> None:
        if target := self._target(call, process)[1]:
            self._add(Truncate(*target, call.number(-1)))

    def _fallocate(self, call: Call, process: Process) -> None:
        target = self._target(call, process)[1]
        if target is None:
            return
        offset = call.number(-2)
        length = call.number(-1)
        size = self._size(target[0])
        mode = call.arguments.split(", ")[1]
        if "PUNCH_HOLE" in mode or "ZERO_RANGE" in mode:
            end = min(offset + length, size) if "KEEP_SIZE" in mode else offset + length
            self._add(Write(*target, offset, bytes(max(0, end - offset))))
        elif "COLLAPSE" in mode or "INSERT" in mode:
            raise Escaped(f"the save called fallocate with {mode}, which cannot be replayed")
        elif "KEEP_SIZE" not in mode and offset + length > size:
            self._add(Truncate(*target, offset + length))

    def _mmap(self, call: Call, process: Process) -> None:
        if "MAP_SHARED" not in call.arguments or not call.descriptors:
            return
        file, target = self._target(call, process)
        if target and not (file and "O_RDONLY" in file.flags):
            self._mapped[id(process.files), call.result or 0] = Mapped(*target)

    def _msync(self, call: Call, process: Process) -> None:
        mapped = self._mapped.get((id(process.files), call.number(0)))
        if mapped and "MS_SYNC" in call.arguments:
            mapped.synced_at = call.time
            self._add(Sync(mapped.number, mapped.path, data_only=True))

    def _io_uring_enter(self, call: Call, process: Process) -> None:
        if self._began:
            raise Escaped(f"the save called {call.name}, whose operations strace does not show")

    def _add_mapped(self, mapped: Mapped) -> None:
        """Record writes through a memory map. Only an msync later than the file's mtime makes them durable."""
        path = next((path for path, number in self._names.items() if number == mapped.number), None)
        if path is None:
            return
        full = os.path.join(self.folder, path)
        before = bytes(self._disk.inodes[mapped.number].latest)
        after = Path(full).read_bytes()
        if len(after) != len(before) or after == before:
            return
        changed = [i for i in range(len(after)) if after[i] != before[i]]
        write = Write(mapped.number, path, changed[0], after[changed[0] : changed[-1] + 1])
        synced = [i for i, o in enumerate(self.operations) if isinstance(o, Sync) and o.inode == mapped.number]
        in_time = mapped.synced_at and os.stat(full).st_mtime <= mapped.synced_at
        self.operations.insert(synced[-1] if in_time else self._returns()[-1], write)

    # Syncs

    def _fsync(self, call: Call, process: Process) -> None:
        if not self._began or not call.descriptors:
            return
        _, path, deleted = call.descriptors[0]
        inside = self._inside(path)
        number = ROOT if inside == "" else (self._file(path, deleted) or (None,))[0]
        if number is None:
            self._synced_outside.add(path)
            return
        sync = Sync(number, NAMELESS if deleted else inside or "", data_only=call.name == "fdatasync")
        at = call.begun.position if call.begun else len(self.operations)
        if any(_concerns(operation, number, inside or "") for operation in self.operations[at:]):
            self.operations.insert(at, sync)  # changes during the fsync may have come too late for it
        else:
            self._add(sync)

    def _sync(self, call: Call, process: Process) -> None:
        if self._began:
            self._add(SyncAll())

    # Names

    def _rename(self, call: Call, process: Process) -> None:
        old, new = self._paths(call, process)
        if not self._began or (old is None and new is None) or old == new:
            return
        if "RENAME_EXCHANGE" in call.arguments and None not in (old, new):
            raise Escaped("the save exchanged two names, which cannot be replayed")
        if old is None and new is not None:
            self._move_in(call, process, new)
            return
        if old not in self._names:
            raise Escaped(f"the save moved `{old}`, which the record does not know, so this cannot be replayed")
        if new is None and isinstance(self._disk.inodes[self._names[old]].latest, dict):
            raise Escaped(f"the save moved the folder `{old}` out of the recorded folder, which cannot be replayed")
        if new is None:
            self._gone[old] = self._names.pop(old)
            self._add(Remove(old))
            return
        if self._names.get(new) != self._names[old]:  # renaming between two names of one file does nothing
            if new in self._names:
                self._gone[new] = self._names[new]
            for path in [name for name in self._names if (name + "/").startswith(old + "/")]:
                self._names[new + path[len(old) :]] = self._names.pop(path)
        self._add(Rename(old, new))

    def _move_in(self, call: Call, process: Process, new: str) -> None:
        """Record a move of a file into the folder as a new file that is written beside its new name and then renamed.
        The new file is synced in the record if the save synced the old one outside of the folder."""
        full = os.path.join(self.folder, new)
        beside = f"{new}.moved-in"
        if not os.path.isfile(full):
            raise Escaped(f"the save moved `{new}` into the folder, but it is not a file at the end")
        number = self._number()
        self._add(Create(number, beside))
        self._add(Write(number, beside, 0, Path(full).read_bytes()))
        if self._full_paths(call, process)[0] in self._synced_outside:
            self._add(Sync(number, beside))
        if new in self._names:
            self._gone[new] = self._names[new]
        self._names[new] = number
        self._add(Rename(beside, new))

    def _link(self, call: Call, process: Process) -> None:
        new = self._paths(call, process)[1]
        if not self._began or new is None:
            return
        nameless = [self._file(path, gone) for _, path, gone in call.descriptors if gone]
        number = nameless[0][0] if nameless and nameless[0] else self._names.get(self._paths(call, process)[0] or "")
        if not number:
            raise Escaped(f"the save linked `{new}` to a file outside of the folder")
        self._names[new] = number
        self._add(HardLink(number, new))

    def _symlink(self, call: Call, process: Process) -> None:
        strings = [os.fsdecode(plain_bytes(text)) for text, _ in re.findall(STRING, call.arguments)]
        new = self._inside(self._path(process, [path for _, path, _ in call.descriptors][:1], strings[1]))
        if self._began and new is not None:
            self._names[new] = self._number()
            self._add(MakeLink(self._names[new], new, link_target(self.folder, new, strings[0])))

    def _unlink(self, call: Call, process: Process) -> None:
        path = self._paths(call, process)[0]
        if self._began and path in self._names:
            self._gone[path] = self._names.pop(path)
            folder = "AT_REMOVEDIR" in call.arguments or call.name == "rmdir"
            self._add(RemoveFolder(path) if folder else Remove(path))

    def _mkdir(self, call: Call, process: Process) -> None:
        path = self._paths(call, process)[0]
        if self._began and path is not None:
            self._names[path] = self._number()
            self._add(MakeFolder(self._names[path], path))

    # Helpers

    def _add(self, operation: Operation) -> None:
        self.operations.append(operation)
        self._disk.apply(operation)

    def _returns(self) -> list[int]:
        return [i for i, operation in enumerate(self.operations) if isinstance(operation, Saved)]

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def _size(self, number: int) -> int:
        return len(self._disk.inodes[number].latest)

    def _file(self, path: str, deleted: bool) -> tuple[int, str] | None:
        inside = self._inside(path)
        if not inside:
            return None
        number = (self._gone if deleted else self._names).get(inside)
        name = NAMELESS if os.path.basename(inside).startswith("#") and deleted else inside
        return None if number is None else (number, name)

    def _target(self, call: Call, process: Process) -> tuple[Open | None, tuple[int, str] | None]:
        """Return the open file of a call's first descriptor, and its number and path if it is in the folder."""
        if not call.descriptors:
            return process.files.get(call.number(0)), None
        number, path, deleted = call.descriptors[0]
        return process.files.get(number), self._file(path, deleted) if self._began else None


def _concerns(operation: Operation, number: int, path: str) -> bool:
    if isinstance(operation, Write | Truncate | Create):
        return operation.file == number
    return not isinstance(operation, Sync) and any(os.path.dirname(name) == path for name in paths(operation))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        raise Escaped(f"the save copied {path}, which is no longer there: keep it until the record is made") from None
