"""Lab 13: the numbers of its prose."""

import hashlib
import itertools
import json

import pytest
from threeloops.lab.disks.syncs import BEFORE, PLACES, SAVE, fewest_syncs, with_syncs
from threeloops.training.checkpoint.crash import check, crash_states, recording
from threeloops.training.checkpoint.crash.model.operations import Record, Rename
from threeloops.training.checkpoint.crash.model.states import states_after

OLD, NEW = b"o" * 1200, b"n" * 1300


def record_of(folder, save):
    (folder / "model").write_bytes(OLD)
    with recording(folder) as recorder:
        save(folder)
    return recorder.record


def test_overwriting_1300_bytes_may_leave_sixteen_contents(tmp_path):
    record = record_of(tmp_path, lambda folder: (folder / "model").write_bytes(NEW))
    contents = {state.files["model"] for state in crash_states(record).states}
    assert len(contents) == 16 and len(contents - {OLD, NEW}) == 14
    assert {len(content) for content in contents - {OLD}} == {0, 512, 1024, 1300}


def test_a_rename_without_an_fsync_has_31_states(tmp_path):
    def save(folder):
        (folder / "new").write_bytes(NEW)
        (folder / "new").replace(folder / "model")

    record = record_of(tmp_path, save)
    after = next(n for n, each in enumerate(record.operations) if isinstance(each, Rename))
    assert len(states_after(Record(record.start, record.operations[: after + 1]))) == 31
    assert not check(record, lambda folder: (folder / "model").read_bytes()).ok


def test_the_checksums_of_the_worked_example():
    assert hashlib.sha256(b"abc").hexdigest().startswith("ba78")
    assert hashlib.sha256(b"abb").hexdigest().startswith("715e")
    assert (b"b"[0] ^ b"c"[0]).bit_count() == 1
    assert (ord("0") ^ ord("1")).bit_count() == 1
    assert json.loads('{"position": 641}') == {"position": 641}


def test_the_worked_example_of_stalls():
    copy, write, free, stalls = 1.0, 10.0, 0.0, []
    for begin in (0.0, 6.0):
        free = max(begin, free) + copy
        stalls.append(free - begin)
        free += write
    assert stalls == [1.0, 6.0]


def load_newest(folder):
    names = sorted(path.name for path in folder.glob("step-*") if path.name[5:].isdigit())
    return (folder / names[-1] / "model").read_bytes()


def test_three_of_the_six_fsyncs_are_needed_and_enough():
    sets = [chosen for size in range(7) for chosen in itertools.combinations(PLACES.values(), size)]
    safe = [chosen for chosen in sets if check(with_syncs(SAVE, BEFORE, chosen), load_newest).ok]
    assert len(sets) == 64
    assert safe[0] == ((2, "step-2.tmp/model"), (2, "step-2.tmp"), (5, "."))
    assert len(safe[1]) == 4 and all({*safe[0]} <= {*chosen} for chosen in safe)


def test_the_fewest_fsyncs_of_the_save_and_of_a_pointer():
    assert sorted(fewest_syncs(SAVE, BEFORE, load_newest)) == [(4, "step-2.tmp"), (4, "step-2.tmp/model"), (5, ".")]
    operations = [
        ("mkdir", "step-2"),
        ("create", "step-2/a"),
        ("write", "step-2/a", 30),
        ("create", "latest.tmp"),
        ("write", "latest.tmp", "step-2"),
        ("rename", "latest.tmp", "latest"),
    ]

    def load(folder):
        return (folder / (folder / "latest").read_text() / "a").read_bytes()

    files = {"step-1": None, "step-1/a": b"old", "latest": b"step-1"}
    assert len(fewest_syncs(operations, files, load)) == 5


def test_an_fsync_of_something_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="there is no 'step-2' after operation 2"):
        with_syncs(SAVE, BEFORE, [(2, "step-2")])
