"""A model of a disk: what is certainly on it, and what may be on it.

Every inode has a latest state, which programs see, a durable state, and the pending operations between the two. `rules`
say which operations an fsync makes durable, and which pending operations may be on disk without others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from threeloops.training.checkpoint.crash.model.operations import (
    MOST_BYTES,
    ROOT,
    BadRecord,
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
)
from threeloops.training.checkpoint.crash.model.rules import POSIX, Rules

__all__ = ["Disk", "Inode", "NameChange", "changed_content"]


_Key = tuple[int, str]
"""A folder's inode, and a name in it."""


@dataclass(eq=False)
class Inode:
    """A file, with its content; a folder, with its entries; or a symbolic link, which never changes."""

    number: int
    name: str
    latest: Any
    """A bytearray, a dictionary of inodes by name, or the target of a link."""
    durable: Any
    pending: list[tuple[int, Write | Truncate]] = field(default_factory=list)
    """Operations on a file's content since the last sync, by position in the record."""
    changed: int = -1
    """Position of the last operation on it, or on its name."""
    synced: int = -1


@dataclass(eq=False)
class NameChange:
    """A change of names that gets to the disk whole or not at all."""

    position: int
    operation: Operation
    sets: tuple[tuple[_Key, int | None], ...]
    """The inode that each name refers to afterwards, or None if the name is gone."""
    inode: int
    replaces: bool = False
    empties: int | None = None
    """A folder that vanishes with it, so it must be empty on disk by then."""
    after: tuple["NameChange", ...] = ()
    """Changes that are on disk whenever this one is. In a journal this is the change before. Otherwise these are the
    changes of the same names, and those inside a folder that vanishes."""
    durable: bool = False


class Disk:
    """Replays a record, one `apply` per operation. Raises BadRecord if an operation is impossible."""

    def __init__(self, start: Iterable[Entry] = (), rules: Rules = POSIX) -> None:
        self.rules = rules
        self.inodes = {ROOT: Inode(ROOT, "", {}, {})}
        self.pending: list[NameChange] = []
        self.position = 0
        self.committed = -1
        """Position of the last change of names that is durable."""
        self._bytes = 0
        self._last: dict[_Key, NameChange] = {}
        self._inside: dict[int, list[NameChange]] = {}
        for entry in start:
            self._add_entry(entry)

    @classmethod
    def after(cls, record: Record, rules: Rules = POSIX) -> "Disk":
        disk = cls(record.start, rules)
        for operation in record.operations:
            disk.apply(operation)
        return disk

    def apply(self, operation: Operation) -> None:
        match operation:
            case Write() | Truncate():
                self._change_content(operation)
            case Create(file, path):
                self._new(file, path or "", bytearray(), b"")
                if path:
                    self._change_names(operation, file, {self._key(path, free=True): file})
            case MakeFolder(folder, path):
                self._new(folder, path, {}, {})
                self._change_names(operation, folder, {self._key(path, free=True): folder})
            case MakeLink(link, path, target):
                self._new(link, path, target, target)
                self._change_names(operation, link, {self._key(path, free=True): link})
            case HardLink(file, path):
                self._file(file)
                self._change_names(operation, file, {self._key(path, free=True): file})
            case Remove(path):
                self._change_names(operation, self._find(path, bytearray, str).number, {self._key(path): None})
            case RemoveFolder(path):
                gone = self._find(path, dict)
                self._must_be_empty(gone)
                self._change_names(operation, gone.number, {self._key(path): None}, empties=gone.number)
            case Rename():
                self._rename(operation)
            case Sync(number, _, data_only):
                self._sync(self._inode(number), data_only)
            case SyncAll():
                for inode in self.inodes.values():
                    self._sync(inode)
            case Saved():
                pass
        self.position += 1

    def tree(self, names: Iterable[NameChange] | None = None) -> dict[str, Inode]:
        """Return every file and folder by its path, without the recorded folder itself. By default they are as programs
        see them. With `names` they are as on a disk that has these of the pending changes of names."""
        entries = {n: i.latest if names is None else i.durable for n, i in self.inodes.items() if _is_folder(i)}
        if names is not None:
            entries = {number: dict(listing) for number, listing in entries.items()}
            _set_names(entries, names)
        by_path: dict[str, Inode] = {}
        todo = [(ROOT, "")]
        while todo:
            folder, prefix = todo.pop()
            for name, number in entries[folder].items():
                by_path[prefix + name] = self.inodes[number]
                if number in entries:
                    todo.append((number, f"{prefix}{name}/"))
        return by_path

    # One operation

    def _change_content(self, operation: Write | Truncate) -> None:
        inode = self._file(operation.file)
        end = operation.size if isinstance(operation, Truncate) else operation.offset + len(operation.data)
        grows = end - len(inode.latest)
        self._bytes += grows if isinstance(operation, Truncate) else max(0, grows)
        if max(end, self._bytes) > MOST_BYTES:
            raise BadRecord(f"{operation} (operation {self.position}): expected {MOST_BYTES} bytes in all at most")
        _write(inode.latest, operation)
        inode.pending.append((self.position, operation))
        inode.changed = self.position

    def _rename(self, operation: Rename) -> None:
        moved = self._find(operation.old)
        old = self._key(operation.old)
        new = self._key(operation.new)
        if (operation.new + "/").startswith(operation.old + "/") and operation.new != operation.old:
            raise BadRecord(f"{operation} (operation {self.position}): a folder cannot move into itself")
        replaced = self.inodes.get(self._entries(new[0]).get(new[1], -1))
        if replaced is moved:
            return  # by rename(2), two names of one file stay as they are
        if replaced is not None and _is_folder(replaced) != _is_folder(moved):
            raise BadRecord(f"{operation} (operation {self.position}): a file and a folder cannot replace one another")
        if replaced is not None and _is_folder(replaced):
            self._must_be_empty(replaced)
        empties = replaced.number if replaced is not None and _is_folder(replaced) else None
        sets = {old: None, new: moved.number}
        self._change_names(operation, moved.number, sets, replaces=replaced is not None, empties=empties)

    def _change_names(
        self,
        operation: Operation,
        inode: int,
        sets: dict[_Key, int | None],
        replaces: bool = False,
        empties: int | None = None,
    ) -> None:
        after = {self._last[key] for key in sets if key in self._last}
        if empties is not None:
            after |= set(self._inside.get(empties, ()))
        if self.rules.journal:
            after = set(self.pending[-1:])
        change = NameChange(self.position, operation, tuple(sets.items()), inode, replaces, empties, tuple(after))
        self.pending.append(change)
        for key in sets:
            self._last[key] = change
            self._inside.setdefault(key[0], []).append(change)
        _set_names({folder: self.inodes[folder].latest for folder, _ in sets}, [change])
        for number in {inode, *(folder for folder, _ in sets)}:
            self.inodes[number].changed = self.position

    def _sync(self, inode: Inode, data_only: bool = False) -> None:
        if isinstance(inode.latest, bytearray):
            inode.durable = bytes(inode.latest)
            inode.pending = []
        if not data_only:
            own = [change for change in self.pending if any(key[0] == inode.number for key, _ in change.sets)]
            if self.rules.journal:
                own = [change for change in self.pending if change.position <= inode.changed]
            self._commit(own)
        inode.synced = self.position

    def _commit(self, changes: Iterable[NameChange]) -> None:
        """Make these changes durable, and those that must be on disk before them."""
        todo = list(changes)
        while todo:
            change = todo.pop()
            if not change.durable:
                change.durable = True
                todo += change.after
        now = [change for change in self.pending if change.durable]
        for change in now:
            self.committed = max(self.committed, change.position)
            moved = self.inodes[change.inode]
            if self.rules.replacing_flushes and change.replaces and isinstance(moved.latest, bytearray):
                moved.durable = changed_content(moved, change.position)
                moved.pending = [write for write in moved.pending if write[0] > change.position]
        folders = {folder for change in now for (folder, _), _ in change.sets}
        _set_names({folder: self.inodes[folder].durable for folder in folders}, now)
        self.pending = [change for change in self.pending if not change.durable]

    # What stands where

    def _add_entry(self, entry: Entry) -> None:
        folder, name = self._key(entry.path, free=True)
        if entry.inode not in self.inodes:
            if entry.data is not None:
                self._new(entry.inode, entry.path, bytearray(entry.data), entry.data)
            elif entry.target is not None:
                self._new(entry.inode, entry.path, entry.target, entry.target)
            else:
                self._new(entry.inode, entry.path, {}, {})
        elif entry.data is None:
            raise BadRecord(f"{entry.path} has the inode {entry.inode} of another: only files have several names")
        for entries in (self.inodes[folder].latest, self.inodes[folder].durable):
            entries[name] = entry.inode

    def _new(self, number: int, name: str, latest, durable) -> None:
        if number in self.inodes:
            raise BadRecord(f"inode {number} is made twice (operation {self.position})")
        self.inodes[number] = Inode(number, name, latest, durable)

    def _inode(self, number: int) -> Inode:
        if number not in self.inodes:
            raise BadRecord(f"there is no inode {number} (operation {self.position})")
        return self.inodes[number]

    def _file(self, number: int) -> Inode:
        inode = self._inode(number)
        if not isinstance(inode.latest, bytearray):
            raise BadRecord(f"inode {number} is not a file (operation {self.position})")
        return inode

    def _entries(self, number: int) -> dict[str, int]:
        return self.inodes[number].latest

    def _find(self, path: str, *kinds: type) -> Inode:
        folder, name = self._key(path)
        if name not in self._entries(folder):
            raise BadRecord(f"there is no {path} (operation {self.position})")
        inode = self.inodes[self._entries(folder)[name]]
        if kinds and not isinstance(inode.latest, kinds):
            raise BadRecord(f"{path} is of another kind (operation {self.position})")
        return inode

    def _key(self, path: str, *, free: bool = False) -> _Key:
        """A path's folder and last name, which is in use, or `free`; for a rename's new path, either."""
        *parents, name = path.split("/")
        folder = ROOT
        for parent in parents:
            folder = self._entries(folder).get(parent, -1)
            if folder not in self.inodes or not _is_folder(self.inodes[folder]):
                raise BadRecord(f"{path}: there is no folder {parent!r} (operation {self.position})")
        if free and name in self._entries(folder):
            raise BadRecord(f"{path} is there already (operation {self.position})")
        return folder, name

    def _must_be_empty(self, folder: Inode) -> None:
        if folder.latest:
            raise BadRecord(f"the folder {folder.name} is not empty (operation {self.position})")


def changed_content(inode: Inode, until: int) -> bytes:
    """The content of a file with its pending operations up to this position on disk."""
    content = bytearray(inode.durable)
    for position, operation in inode.pending:
        if position <= until:
            _write(content, operation)
    return bytes(content)


def _write(content: bytearray, operation: Write | Truncate) -> None:
    if isinstance(operation, Truncate):
        del content[operation.size :]
        content.extend(bytes(operation.size - len(content)))
    elif operation.data:
        content.extend(bytes(max(0, operation.offset - len(content))))
        content[operation.offset : operation.offset + len(operation.data)] = operation.data


def _set_names(folders: dict, changes: Iterable[NameChange]) -> None:
    for change in changes:
        for (folder, name), inode in change.sets:
            if inode is None:
                folders[folder].pop(name, None)
            else:
                folders[folder][name] = inode


def _is_folder(inode: Inode) -> bool:
    return isinstance(inode.latest, dict)
