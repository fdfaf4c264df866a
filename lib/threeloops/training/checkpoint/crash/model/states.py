"""The states that a crash may leave, each with an explanation.

An fsync can only reduce what may be lost, and every other operation can only increase it. So every state occurs right
before an fsync, before the return of a save, or at the end. A state that is possible at several such points is reported
at the earliest.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from random import Random
from typing import Any

from threeloops.training.checkpoint.crash.model.contents import (
    Content,
    Contents,
    content_key,
    possible_contents,
    some,
)
from threeloops.training.checkpoint.crash.model.disk import Disk, Inode, NameChange, changed_content
from threeloops.training.checkpoint.crash.model.operations import (
    Operation,
    Record,
    Saved,
    Sync,
    SyncAll,
    Truncate,
    paths,
)
from threeloops.training.checkpoint.crash.model.rules import POSIX, Rules

__all__ = ["CrashStates", "DirtyFile", "Files", "State", "crash_states", "files_after", "states_after", "visible"]

Files = dict[str, bytes | str | None]
"""The contents of a folder: contents of files, targets of symbolic links, None for folders."""

_MOST_NAMES = 128
_MOST_CONTENTS = 512
"""Pending changes of names, and contents of one file, from which corners are taken rather than everything."""


@dataclass(frozen=True)
class DirtyFile:
    """A file that was written and not synced, and the part of it that is on disk."""

    path: str
    inode: Inode
    content: Content

    @property
    def data(self) -> bytes:
        return self.content.data

    def lost(self, point: int) -> str:
        """Describe in a few words how the state differs from what programs saw after that operation. "" if nothing is
        lost."""
        data = self.data
        whole = changed_content(self.inode, point)
        return "" if data == whole else _difference(data, whole, bytes(self.inode.durable))


@dataclass(frozen=True)
class State:
    """A state that a crash after operation `point` may leave. -1 is before the first operation."""

    contents: Mapping[str, Content | bytes | str | None] = field(repr=False)
    point: int
    saves: int
    """How many saves had returned."""
    missing: tuple[NameChange, ...] = field(repr=False)
    """Operations on names, up to the crash, that are not on disk."""
    dirty: tuple[DirtyFile, ...] = field(repr=False)
    operations: list[Operation] = field(repr=False, compare=False)

    @property
    def files(self) -> Files:
        return {
            path: content.data if isinstance(content, Content) else content for path, content in self.contents.items()
        }

    @cached_property
    def key(self) -> Hashable:
        """Equal for states with the same files."""
        return frozenset((path, _key(content)) for path, content in self.contents.items())

    @property
    def losses(self) -> list[str]:
        """Describe each loss of the crash in a few words."""
        names = [f"`{change.operation}` (operation {change.position}) is not on disk" for change in self.missing]
        files = [f"`{file.path}` {lost}" for file in self.dirty if (lost := file.lost(self.point))]
        return names + files

    @property
    def story(self) -> str:
        when = f"after operation {self.point}, `{self.operations[self.point]}`" if self.point >= 0 else "at the start"
        return f"{when}: {'; '.join(self.losses) or 'everything is on disk'}"

    @property
    def cause(self) -> str:
        """Which fsync would have excluded this state."""
        causes = []
        for file in self.dirty:
            if file.lost(self.point):
                last = max(position for position, _ in file.inode.pending if position <= self.point)
                early = file.inode.synced
                came = f"; its fsync, operation {early}, came too early" if early >= 0 else ""
                causes.append(f"no fsync of `{file.inode.name}` after it was written (operation {last}){came}")
        for change in self.missing:
            folders = sorted({_parent(path) for path in paths(change.operation)})
            causes.append(
                f"no fsync of {' or '.join(folders)} after `{change.operation}` (operation {change.position})"
            )
        if not causes:
            return "nothing was lost: a kill is enough, because the operations themselves pass through this state"
        return "; ".join(causes)


@dataclass(frozen=True)
class CrashStates:
    states: list[State]
    all_of_them: bool
    """Whether these are all states. If there are more than `most` before an fsync, they are corners and a sample."""


def crash_states(record: Record, rules: Rules = POSIX, *, most: int = 4096) -> CrashStates:
    """The distinct states of all crashes during a record.

    If there are at most `most` states right before an fsync, all of them are returned. Otherwise, a part of them is
    returned: those in which one pending change of names alone is on disk or alone is missing, those in which one file
    alone has one of its possible contents, and a sample that is always the same.

    Raises:
        BadRecord: an operation is impossible.
    """
    disk = Disk(record.start, rules)
    distinct: dict[tuple[int, Hashable], State] = {}
    contents: _Known = {}
    complete = True
    saves = 0
    barrier = -1
    for operation in (*record.operations, None):
        if operation is None or isinstance(operation, Sync | SyncAll | Saved):
            states = _Crash(disk, record.operations, saves, barrier, most, contents)
            for state in states:
                key = (saves, state.key)
                if key not in distinct or state.point < distinct[key].point:
                    distinct[key] = state
            complete &= states.complete
            barrier = disk.position
        if operation is not None:
            disk.apply(operation)
            saves += isinstance(operation, Saved)
    return CrashStates(sorted(distinct.values(), key=lambda state: state.point), complete)


def states_after(record: Record, rules: Rules = POSIX, *, most: int = 4096) -> list[State]:
    """The distinct states of a crash after the last operation of a record. Earlier crashes are left out.

    Raises:
        BadRecord: an operation is impossible.
    """
    saves = sum(isinstance(operation, Saved) for operation in record.operations)
    states = _Crash(Disk.after(record, rules), record.operations, saves, -1, most, {})
    return list({state.key: state for state in states}.values())


def files_after(record: Record, count: int | None = None) -> Files:
    """Return the files that programs see after the first `count` operations, or after all."""
    disk = Disk.after(Record(record.start, record.operations[:count]))
    return {path: visible(inode.latest) for path, inode in disk.tree().items()}


_Known = dict[tuple[int, ...], Contents]
"""Possible contents of a file, by its number, its first and last pending operation, and the flushed and cut places."""


class _Crash:
    """The states of a crash at one moment."""

    def __init__(
        self, disk: Disk, operations: list[Operation], saves: int, barrier: int, most: int, contents: "_Known"
    ) -> None:
        self.disk = disk
        self.operations = operations
        self.saves = saves
        self.barrier = barrier
        self.most = most
        self.complete = True
        self._contents = contents
        self._random = Random(disk.position)

    def __iter__(self) -> Iterator[State]:
        names, complete = self._choices_of_names()
        options = [(chosen, *self._options(chosen)) for chosen in names]
        count = sum(prod(len(possible.choices) for possible in contents.values()) for _, _, contents in options)
        exact = all(possible.all_of_them for _, _, contents in options for possible in contents.values())
        self.complete = complete and exact and count <= self.most
        for chosen, tree, contents in options:
            every = [possible.choices for possible in contents.values()]
            picks = product(*every) if self.complete else self._sampled(every, max(1, self.most // len(options)))
            for pick in picks:
                yield self._state(chosen, tree, dict(zip(contents, pick, strict=True)))

    def _choices_of_names(self) -> tuple[list[tuple[NameChange, ...]], bool]:
        """Sets of pending changes that may be on disk without the others."""
        pending = self.disk.pending
        needed = {change: frozenset(c for c in change.after if not c.durable) for change in pending}
        if len(pending) <= _MOST_NAMES:
            chosen: list[frozenset[NameChange]] = [frozenset()]
            for change in pending:
                chosen += [subset | {change} for subset in chosen if needed[change] <= subset]
                if len(chosen) > self.most:
                    break
            else:
                return [tuple(c for c in pending if c in subset) for subset in chosen], True
        corners = {frozenset[NameChange](), frozenset(pending)}
        for change in some(pending, _MOST_NAMES):
            alone = {change}
            todo = [change]
            while todo:
                more = needed[todo.pop()] - alone
                alone |= more
                todo += more
            without: set[NameChange] = set()
            for other in pending:
                if other is not change and needed[other] <= without:
                    without.add(other)
            before = [other for other in pending if other.position < change.position]
            corners |= {frozenset(before), frozenset(without), frozenset(alone)}
        for _ in range(min(self.most // 4, _MOST_NAMES)):
            picked: set[NameChange] = set()
            for change in pending:
                if self._random.random() < 0.5 and needed[change] <= picked:
                    picked.add(change)
            corners.add(frozenset(picked))
        ordered = (tuple(change for change in pending if change in corner) for corner in corners)
        return sorted(ordered, key=lambda changes: (-len(changes), [change.position for change in changes])), False

    def _options(self, chosen: tuple[NameChange, ...]) -> tuple[dict[str, Inode], dict[int, Contents]]:
        """Return the tree with these changes on disk, and the possible contents of each file that was not synced."""
        disk = self.disk
        rules = self.disk.rules
        tree = disk.tree(chosen)
        last = max((change.position for change in chosen), default=disk.committed) if rules.journal else -1
        flushed: dict[int, int] = {}
        for change in chosen if rules.replacing_flushes else ():
            if change.replaces:
                flushed[change.inode] = change.position
        contents = {}
        for inode in {inode.number: inode for inode in tree.values() if inode.pending}.values():
            cuts = (p for p, o in inode.pending if isinstance(o, Truncate) and p <= last)
            flush = flushed.get(inode.number, -1)
            cut = max(cuts, default=-1)
            key = (inode.number, inode.pending[0][0], inode.pending[-1][0], flush, cut)
            if key not in self._contents:
                most = min(self.most, _MOST_CONTENTS)
                self._contents[key] = possible_contents(inode, rules, most, flushed=flush, cut=cut)
            contents[inode.number] = self._contents[key]
        return tree, contents

    def _sampled(self, every: list[list[Content]], most: int) -> Iterable[tuple[Content, ...]]:
        """All files complete, each alone in each of its states, each alone complete, all at their oldest; and more."""
        whole = [choices[0] for choices in every]
        oldest = [min(choices, key=lambda content: content.newest) for choices in every]
        yield tuple(whole)
        yield tuple(oldest)
        for i, choices in enumerate(every):
            yield (*oldest[:i], whole[i], *oldest[i + 1 :])
            for content in choices:
                yield (*whole[:i], content, *whole[i + 1 :])
        for _ in range(most if every else 0):
            yield tuple(self._random.choice(choices) for choices in every)

    def _state(self, chosen: tuple[NameChange, ...], tree: dict[str, Inode], contents: dict[int, Content]) -> State:
        files: dict[str, Content | bytes | str | None] = {}
        paths: dict[int, str] = {}
        for path, inode in tree.items():
            content = contents.get(inode.number)
            files[path] = content or visible(inode.durable)
            paths[inode.number] = path
        newest = [content.newest for content in contents.values()] + [change.position for change in chosen]
        point = max([self.barrier, *newest])
        there = set(chosen)
        missing = tuple(c for c in self.disk.pending if c.position <= point and c not in there)
        inodes = self.disk.inodes
        dirty = tuple(DirtyFile(paths[n], _frozen(inodes[n]), content) for n, content in contents.items())
        return State(files, point, self.saves, missing, dirty, self.operations)


def _frozen(inode: Inode) -> Inode:
    """Copy the inode as it is now, because the disk keeps changing."""
    return Inode(inode.number, inode.name, b"", inode.durable, inode.pending, inode.changed, inode.synced)


def _key(content: Content | bytes | str | None) -> Hashable:
    if isinstance(content, Content):
        return content.key
    return content_key(content) if isinstance(content, bytes) else content


def visible(content: Any) -> bytes | str | None:
    if isinstance(content, dict):
        return None
    return content if isinstance(content, str | bytes) else bytes(content)


def _parent(path: str) -> str:
    folder = path.rpartition("/")[0]
    return f"the folder `{folder}`" if folder else "the folder"


def _difference(data: bytes, whole: bytes, durable: bytes) -> str:
    length = len(data)
    size = len(whole)
    if not length:
        return f"is empty instead of {size} bytes"
    if data == durable:
        return f"still has its old content ({length} bytes)"
    if whole.startswith(data):
        return f"has only the first {length} of {size} bytes"
    if not data.strip(b"\0"):
        return f"has {length} bytes, all of them zero"
    first = next(i for i in range(0, min(length, size) + 1, 512) if data[i : i + 512] != whole[i : i + 512])
    return f"is torn: wrong from about byte {first} on, {length} of {size} bytes long"
