"""Lab 13: the numbers of its prose."""

import hashlib
import json

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
