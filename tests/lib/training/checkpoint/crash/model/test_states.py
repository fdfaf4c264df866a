"""Which states a crash may leave: counted by hand, and compared with an independent enumeration by brute force."""

from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.training.checkpoint.crash.model.contents import possible_contents
from threeloops.training.checkpoint.crash.model.disk import Disk
from threeloops.training.checkpoint.crash.model.operations import (
    BadRecord,
    Create,
    Entry,
    HardLink,
    MakeFolder,
    MakeLink,
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
from threeloops.training.checkpoint.crash.model.rules import EXT4, POSIX, XFS
from threeloops.training.checkpoint.crash.model.states import crash_states, files_after, states_after

ROOT = 0


def states(record, rules=POSIX, sector=4, saves=None):
    found = crash_states(record, replace(rules, sector=sector))
    assert found.all_of_them
    return [state.files for state in found.states if saves in (None, state.saves)]


def test_one_write_without_fsync_is_absent_empty_a_prefix_with_and_without_zeros_or_whole():
    record = Record([], [Create(1, "f"), Write(1, "f", 0, b"abcdef")])
    contents = [b"", b"abcd", b"\0\0\0\0", b"abcdef", b"abcd\0\0", b"\0\0\0\0ef", b"\0\0\0\0\0\0"]
    found = states(record)
    assert len(found) == 8 and all(each in found for each in [{}, *({"f": content} for content in contents)])


def test_an_fsync_of_a_file_does_not_give_it_a_name():
    record = Record([], [Create(1, "f"), Write(1, "f", 0, b"ab"), Sync(1, "f"), Saved()])
    assert states(record, POSIX, saves=1) == [{}, {"f": b"ab"}]
    assert states(record, EXT4, saves=1) == states(record, XFS, saves=1) == [{"f": b"ab"}]


def test_an_fsync_of_the_folder_gives_a_file_its_name_and_nothing_else():
    record = Record([], [Create(1, "f"), Write(1, "f", 0, b"ab"), Sync(ROOT, ""), Saved()])
    for rules in (POSIX, EXT4, XFS):
        last = states(record, rules, saves=1)
        assert {"f": b""} in last and {"f": b"ab"} in last and {} not in last
    assert len(states(record, EXT4, saves=1)) == 2 and len(states(record, POSIX, saves=1)) == 3


def test_names_get_to_the_disk_in_any_order_under_posix_and_in_theirs_in_a_journal():
    record = Record([], [MakeFolder(1, "a"), MakeFolder(2, "b"), MakeFolder(3, "c")])
    subsets = [dict.fromkeys(each) for n in range(4) for each in combinations("abc", n)]
    found = states(record, POSIX)
    assert len(found) == 8 and all(each in found for each in subsets)
    assert states(record, EXT4) == states(record, XFS) == [{}, {"a": None}, {"a": None, "b": None}, subsets[-1]]


def test_operations_on_the_same_name_keep_their_order():
    record = Record([Entry("f", 1, b"old")], [Remove("f"), Create(2, "f"), Rename("f", "g")])
    assert states(record) == [{"f": b"old"}, {}, {"f": b""}, {"g": b""}]


def test_a_rename_is_there_as_a_whole_or_not_at_all_and_may_come_before_its_data():
    start = [Entry("latest", 1, b"old")]
    record = Record(start, [Create(2, "tmp"), Write(2, "tmp", 0, b"new"), Rename("tmp", "latest"), Saved()])
    renamed = [each["latest"] for each in states(record, POSIX) if "tmp" not in each]
    assert sorted(set(renamed)) == [b"", b"\0\0\0", b"new", b"old"]
    assert {each["latest"] for each in states(record, XFS) if "tmp" not in each} == {b"old", b"", b"new"}
    assert {each["latest"] for each in states(record, EXT4) if "tmp" not in each} == {b"old", b"new"}


def test_without_a_file_to_replace_ext4_does_not_flush_a_rename():
    record = Record([], [Create(2, "tmp"), Write(2, "tmp", 0, b"new"), Rename("tmp", "latest")])
    assert {"latest": b""} in states(record, EXT4)


def test_a_folder_vanishes_after_what_it_held():
    start = [Entry("d", 1), Entry("d/f", 2, b"x")]
    found = states(Record(start, [Rename("d/f", "f"), RemoveFolder("d")]))
    assert found == [{"d": None, "d/f": b"x"}, {"d": None, "f": b"x"}, {"f": b"x"}]


def test_a_file_in_a_new_folder_needs_the_fsync_of_both_folders():
    operations = [MakeFolder(1, "d"), Create(2, "d/f"), Write(2, "d/f", 0, b"x"), Sync(2, "d/f"), Sync(1, "d")]
    assert states(Record([], [*operations, Saved()]), POSIX, saves=1) == [{}, {"d": None, "d/f": b"x"}]
    both = Record([], [*operations, Sync(ROOT, ""), Saved()])
    assert states(both, POSIX, saves=1) == [{"d": None, "d/f": b"x"}]


def test_a_durable_rename_took_with_it_how_its_file_got_there():
    operations = [Create(2, "d/a"), Rename("d/a", "b"), Sync(ROOT, ""), Saved()]
    assert states(Record([Entry("d", 1)], operations), POSIX, saves=1) == [{"d": None, "b": b""}]


def test_an_fsync_in_a_journal_commits_up_to_the_last_operation_on_its_file_and_no_further():
    operations = [Create(1, "a"), Create(2, "b"), Sync(1, "a"), Saved()]
    assert states(Record([], operations), EXT4, saves=1) == [{"a": b""}, {"a": b"", "b": b""}]
    assert states(Record([], [*operations[:2], Sync(2, "b"), Saved()]), XFS, saves=1) == [{"a": b"", "b": b""}]


def test_fdatasync_says_nothing_about_names_and_sync_about_everything():
    write = [Create(1, "a"), Write(1, "a", 0, b"x")]
    assert states(Record([], [*write, Sync(1, "a", data_only=True), Saved()]), EXT4, saves=1) == [{}, {"a": b"x"}]
    assert states(Record([], [*write, SyncAll(), Saved()]), POSIX, saves=1) == [{"a": b"x"}]


def test_names_of_one_file_show_one_content_and_a_file_without_a_name_is_nowhere():
    record = Record([], [Create(1, None), Write(1, "", 0, b"ab"), Sync(1, ""), HardLink(1, "a"), HardLink(1, "b")])
    assert states(record) == [{}, {"a": b"ab"}, {"b": b"ab"}, {"a": b"ab", "b": b"ab"}]
    written = states(Record([], [Create(1, "a"), HardLink(1, "b"), SyncAll(), Write(1, "a", 0, b"xy")]))
    assert {"a": b"\0\0", "b": b"\0\0"} in written and all(
        each.get("a", 1) == each.get("b", 1) for each in written[-3:]
    )


def test_a_symbolic_link_is_there_with_its_target():
    assert states(Record([], [MakeLink(1, "latest", "step-1")])) == [{}, {"latest": "step-1"}]


def test_a_state_tells_when_it_may_be_left_and_what_was_lost():
    start = [Entry("latest", 1, b"old")]
    operations = [
        Create(2, "tmp"), Write(2, "tmp", 0, b"new"), Sync(2, "tmp"), Write(2, "tmp", 3, b"er"),
        Rename("tmp", "latest"), Sync(ROOT, ""), Saved(),
    ]  # fmt: skip
    found = crash_states(Record(start, operations))
    state = next(each for each in found.states if each.files == {"latest": b"new"})
    assert (state.point, state.saves) == (4, 0)
    assert state.story == "after operation 4, `rename tmp → latest`: `latest` still has its old content (3 bytes)"
    assert state.cause == (
        "no fsync of `tmp` after it was written (operation 3); its fsync, operation 2, came too early"
    )
    state = next(
        each for each in found.states if each.files == {"latest": b"old"} and each.point > 0 or not each.losses
    )
    assert state.point == -1 and state.story == "at the start: everything is on disk"


def test_a_missing_name_is_told_with_the_folder_that_was_not_synced():
    operations = [MakeFolder(1, "d"), Create(2, "d/f"), Sync(ROOT, ""), Saved()]
    state = next(
        each for each in crash_states(Record([], operations)).states if each.files == {"d": None} and each.saves
    )
    assert state.losses == ["`create d/f` (operation 1) is not on disk"]
    assert state.cause == "no fsync of the folder `d` after `create d/f` (operation 1)"


def test_where_there_are_too_many_each_loss_alone_is_among_them():
    operations = [each for n in range(20) for each in (Create(n + 1, f"f{n}"), Write(n + 1, f"f{n}", 0, b"x"))]
    found = crash_states(Record([], operations), most=500)
    assert not found.all_of_them
    files = [state.files for state in found.states]
    whole = {f"f{n}": b"x" for n in range(20)}
    assert {} in files and whole in files
    for n in range(20):
        name = f"f{n}"
        assert {other: b"x" for other in whole if other != name} in files, "each name alone missing"
        assert {name: b"x"} in files or {name: b""} in files, "each name alone there"
        assert {**whole, name: b""} in files and {**whole, name: b"\0"} in files, "each file alone lost"
    assert [state.files for state in crash_states(Record([], operations), most=500).states] == files


@pytest.mark.parametrize(
    ("operations", "why"),
    [
        ([Write(5, "f", 0, b"x")], "there is no inode 5"),
        ([Remove("f")], "there is no f"),
        ([Rename("f", "g")], "there is no f"),
        ([Create(1, "f"), Create(2, "f")], "f is there already"),
        ([Create(1, "f"), Create(1, "g")], "inode 1 is made twice"),
        ([Create(1, "d/f")], "there is no folder 'd'"),
        ([MakeFolder(1, "d"), Remove("d")], "d is of another kind"),
        ([Create(1, "d"), RemoveFolder("d")], "d is of another kind"),
        ([MakeFolder(1, "d"), Create(2, "d/f"), RemoveFolder("d")], "the folder d is not empty"),
        ([MakeFolder(1, "d"), Rename("d", "d/e")], "a folder cannot move into itself"),
        ([MakeFolder(1, "d"), Create(2, "f"), Rename("f", "d")], "cannot replace one another"),
        ([MakeFolder(1, "d"), Write(1, "d", 0, b"x")], "inode 1 is not a file"),
        ([Create(1, "f"), Truncate(1, "f", 200 << 20), Create(2, "g"), Truncate(2, "g", 200 << 20)], "bytes in all"),
    ],
)
def test_an_impossible_operation_is_named(operations, why):
    with pytest.raises(BadRecord, match=why):
        crash_states(Record([], operations))


# Brute force: every crash point, every subset of changes of names, every time for every sector.


@st.composite
def records(draw):
    """Small programs on two folders and a few names, by construction possible."""
    start = [Entry("d", 1), Entry("a", 2, b"0123456"), Entry("d/a", 3, b"x")]
    kinds = {1: "folder", 2: "file", 3: "file"}
    names = {"d": 1, "a": 2, "d/a": 3}
    sizes = {2: 7, 3: 1}
    operations = []
    for step in range(draw(st.integers(1, 7))):
        new = 10 + step
        files = sorted({inode for inode in names.values() if kinds[inode] == "file"})
        file_names = sorted(name for name in names if kinds[names[name]] == "file")
        free = [name for name in ("a", "b", "d/a", "d/b") if name not in names]
        choices = ["sync_root", "sync_d", "saved", "sync_all"]
        choices += ["write", "write", "truncate", "sync", "rename", "remove", "replace"] if files else []
        choices += ["create", "link"] if free and files else []
        match draw(st.sampled_from(choices)):
            case "write":
                file = draw(st.sampled_from(files))
                offset = draw(st.integers(0, min(8, sizes[file] + 1)))
                data = bytes([65 + step]) * draw(st.integers(1, 6))
                operations.append(Write(file, "", offset, data))
                sizes[file] = max(sizes[file], offset + len(data))
            case "truncate":
                file = draw(st.sampled_from(files))
                sizes[file] = draw(st.integers(0, 9))
                operations.append(Truncate(file, "", sizes[file]))
            case "sync":
                operations.append(Sync(draw(st.sampled_from(files)), "", draw(st.booleans())))
            case "sync_root":
                operations.append(Sync(ROOT, ""))
            case "sync_d":
                operations.append(Sync(1, "d"))
            case "sync_all":
                operations.append(SyncAll())
            case "saved":
                operations.append(Saved())
            case "create":
                name = draw(st.sampled_from(free))
                operations.append(Create(new, name))
                names[name], kinds[new], sizes[new] = new, "file", 0
            case "link":
                name, file = draw(st.sampled_from(free)), draw(st.sampled_from(files))
                operations.append(HardLink(file, name))
                names[name] = file
            case "remove":
                name = draw(st.sampled_from(file_names))
                operations.append(Remove(name))
                del names[name]
            case "rename" | "replace":
                old, to = draw(st.sampled_from(file_names)), draw(st.sampled_from(["a", "b", "d/a", "d/b"]))
                operations.append(Rename(old, to))
                if names.get(to) != names[old]:
                    names[to] = names.pop(old)
    return Record(start, operations)


def effects(record):
    """For each operation on names: what each name is set to, whether it replaces, and which inode it concerns."""
    names = {entry.path: entry.inode for entry in record.start}
    found = {}
    for i, operation in enumerate(record.operations):
        match operation:
            case Create(inode, path) | HardLink(inode, path):
                found[i] = ({path: inode}, False, inode)
            case Remove(path):
                found[i] = ({path: None}, False, names[path])
            case Rename(old, new):
                if names.get(new) == names[old]:
                    continue
                found[i] = ({old: None, new: names[old]}, new in names, names[old])
            case _:
                continue
        for path, inode in found[i][0].items():
            names[path] = inode
            if inode is None:
                del names[path]
    return found


def folder_of(path):
    return 1 if path.startswith("d/") else ROOT


def legal_name_sets(record, changes, until, journal):
    operations = record.operations[:until]
    must = set()
    for s, operation in enumerate(operations):
        for i in (i for i in changes if i < s):
            sets, _, inode = changes[i]
            if isinstance(operation, SyncAll):
                must.add(i)
            elif isinstance(operation, Sync) and not operation.data_only:
                if journal:
                    own = [j for j, (names, _, other) in changes.items() if j < s
                           and operation.inode in {other, *map(folder_of, names)}]  # fmt: skip
                    own += [
                        j for j, other in enumerate(operations[:s])
                        if isinstance(other, Write | Truncate) and other.file == operation.inode
                    ]  # fmt: skip
                    if own and i <= max(own):
                        must.add(i)
                elif operation.inode in map(folder_of, sets):
                    must.add(i)
    pending = [i for i in changes if i < until]
    for n in range(len(pending) + 1):
        for chosen in combinations(pending, n):
            if journal:
                closed = list(chosen) == pending[:n]
            else:
                closed = all(
                    j in chosen
                    for i in chosen
                    for j in pending
                    if j < i and changes[j][0].keys() & changes[i][0].keys()
                )
            needed = set(must)
            while True:  # what is durable took with it what it needs
                more = {j for i in needed for j in pending if j < i and changes[j][0].keys() & changes[i][0].keys()}
                if more <= needed:
                    break
                needed |= more
            if closed and needed <= set(chosen):
                yield chosen


def history(base, operations):
    """Content and how far the file had been written, at each time; and the cut that each operation is."""
    content, written, times, cuts = bytes(base), len(base), [(bytes(base), len(base))], [None]
    for _, operation in operations:
        if isinstance(operation, Truncate):
            cuts.append(operation.size if operation.size < len(content) else None)
            content = content[: operation.size].ljust(operation.size, b"\0")
            written = min(written, operation.size)
        else:
            cuts.append(None)
            end = operation.offset + len(operation.data)
            content = content.ljust(end, b"\0")
            content = content[: operation.offset] + operation.data + content[end:]
            written = max(written, end)
        times.append((content, written))
    return times, cuts


def legal_contents(base, operations, growth, sector, cut_since):
    """Of a file with these (position, operation) not synced. `cut_since`: cuts up to that position are on disk."""
    times, cuts = history(base, operations)
    n = len(times)
    borders = [0, *(t for t in range(n) if cuts[t] is not None), n]
    found = set()
    for start, stop in zip(borders[:-1], borders[1:], strict=True):
        if any(p <= cut_since and t >= stop for t, (p, _) in enumerate(operations, 1) if cuts[t] is not None):
            continue

        def reach(t, start=start):
            """How far the file had been written, of which cuts since then have left."""
            return min([times[t][1], *(cuts[c] for c in range(t + 1, start + 1) if cuts[c] is not None)])

        floor = min([len(base), *(cuts[t] for t in range(start + 1) if cuts[t] is not None)])
        sizes = set()
        for t in range(start, stop):
            content, written = times[t]
            sizes.add((len(content), written))
            if t > start and not isinstance(operations[t - 1][1], Truncate):
                grown = range(len(times[t - 1][0]) + 1, len(content))
                sizes |= {(size, min(size, written)) for size in grown if size % sector == 0}
        for size, written in sizes:
            sectors = []
            for first in range(0, size, sector):
                options = set()
                for t in range(stop):
                    left = min([first + sector, *(cuts[c] for c in range(t + 1, start + 1) if cuts[c] is not None)])
                    piece = times[t][0][first : max(first, left)].ljust(sector, b"\0")[: size - first]
                    touched = [k for k in range(1, stop) if isinstance(operations[k - 1][1], Write)
                               and operations[k - 1][1].offset < first + sector
                               and operations[k - 1][1].offset + len(operations[k - 1][1].data) > first]  # fmt: skip
                    for p in range(first, min(first + sector, size, written)):
                        must = growth == "all" or (growth == "end" and first <= min(size, written) - 1 < first + sector)
                        later = any(reach(k) > p for k in touched if k > t)
                        if must and p >= floor and reach(t) <= p and later:
                            break
                    else:
                        options.add(piece)
                sectors.append(options)
            found |= {b"".join(each) for each in product(*sectors)}
    return found


def brute_force(record, rules):
    changes = effects(record)
    found = set()
    for until in range(len(record.operations) + 1):
        saves = sum(isinstance(each, Saved) for each in record.operations[:until])
        for chosen in legal_name_sets(record, changes, until, rules.journal):
            names = {entry.path: entry.inode for entry in record.start}
            for i in chosen:
                names.update(changes[i][0])
            contents = {}
            for inode in {inode for inode in names.values() if inode not in (None, 1)}:
                base = next((entry.data for entry in record.start if entry.inode == inode), b"")
                operations, synced = [], -1
                for i, operation in enumerate(record.operations[:until]):
                    if isinstance(operation, Write | Truncate) and operation.file == inode:
                        operations.append((i, operation))
                    if isinstance(operation, SyncAll) or (isinstance(operation, Sync) and operation.inode == inode):
                        synced = i
                    if rules.replacing_flushes and i in chosen and changes[i][1] and changes[i][2] == inode:
                        synced = i
                done = [each for each in operations if each[0] < synced]
                base = history(base, done)[0][-1][0]
                pending = operations[len(done) :]
                last = max(chosen, default=-1) if rules.journal else -1
                contents[inode] = legal_contents(base, pending, rules.growth, rules.sector, last)
            order = sorted(contents)
            for each in product(*(contents[inode] for inode in order)):
                data = {**dict(zip(order, each, strict=True)), 1: None}
                found.add((saves, frozenset((path, data[inode]) for path, inode in names.items() if inode is not None)))
    return found


@pytest.mark.parametrize("rules", [POSIX, EXT4, XFS], ids=lambda rules: rules.name)
def test_the_states_are_those_of_an_enumeration_by_brute_force(rules):
    rules = replace(rules, sector=4)

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(records())
    def compare(record):
        found = crash_states(record, rules, most=1 << 20)
        ours = {(state.saves, frozenset(state.files.items())) for state in found.states}
        assert len(ours) == len(found.states)
        assert found.all_of_them and ours == brute_force(record, rules)

    compare()


def changes_of_one_file():
    writes = st.builds(lambda offset, size: (offset, size), st.integers(0, 9), st.integers(1, 6))
    return st.lists(writes | st.integers(0, 12), min_size=1, max_size=5)


@pytest.mark.parametrize("rules", [POSIX, EXT4, XFS], ids=lambda rules: rules.name)
def test_the_contents_of_a_file_are_those_of_an_enumeration_by_brute_force(rules):
    rules = replace(rules, sector=4)

    @settings(max_examples=120, deadline=None, derandomize=True)
    @given(st.sampled_from([b"", b"123456", b"12345678"]), changes_of_one_file(), st.integers(-1, 4))
    def compare(base, changes, cut):
        disk = Disk([Entry("f", 1, base)], rules)
        for n, change in enumerate(changes):
            write = isinstance(change, tuple)
            disk.apply(Write(1, "f", change[0], bytes([65 + n]) * change[1]) if write else Truncate(1, "f", change))
        inode = disk.inodes[1]
        found = possible_contents(inode, rules, 1 << 20, cut=cut)
        ours = {each.data for each in found.choices}
        assert found.all_of_them and ours == legal_contents(base, inode.pending, rules.growth, 4, cut)

    compare()


@settings(max_examples=60, deadline=None)
@given(records())
def test_a_sample_is_part_of_all_and_stronger_rules_leave_fewer_states(record):
    def keys(rules, most=1 << 20):
        states = crash_states(record, replace(rules, sector=4), most=most).states
        return {(state.saves, frozenset(state.files.items())) for state in states}

    posix, xfs, ext4 = keys(POSIX), keys(XFS), keys(EXT4)
    assert ext4 <= xfs <= posix
    assert keys(POSIX, most=5) <= posix
    last = sum(isinstance(each, Saved) for each in record.operations)
    assert (last, frozenset(files_after(record).items())) in ext4, "nothing lost is legal"


def test_the_states_of_a_moment_are_fewer_after_an_fsync():
    operations = [Create(1, "f"), Write(1, "f", 0, b"ab"), Sync(1, "f"), Sync(ROOT, "")]
    counts = [[state.files for state in states_after(Record([], operations[:n]))] for n in range(5)]
    assert counts[0] == [{}] and counts[4] == [{"f": b"ab"}]
    assert [len(each) for each in counts] == [1, 2, 4, 2, 1]
    assert {} in counts[3] and {"f": b"ab"} in counts[3]
