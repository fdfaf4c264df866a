"""The records of a class: each is accepted once, whole, whoever writes it and however often."""

import errno
import os
import subprocess
import sys
import threading

import pytest
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.grading import records
from threeloops_grader.worklist.share import Share, share_of
from threeloops_grader.worklist.store import Executed, Key, RecordStore

KEY = Key.of("ada", b"her notebook", "code 1")


def record(score: float = 40.0) -> records.Record:
    tests = [records.Test("mean_test", score, 100.0, "fine")]
    return records.Record("ada", score, 100.0, "graded", 0.5, "cpu", "complete", [], tests)


@pytest.fixture
def store(tmp_path):
    store = RecordStore(tmp_path, "90_toy")
    yield store
    store.close()


def files(store):
    return sorted(path.name for path in store.folder.iterdir() if path.name != ".claims")


def test_the_first_record_of_a_submission_counts(store):
    first = store.keep(KEY, record(40.0))
    second = store.keep(KEY, record(45.0))
    assert (first.score, second.score, store.load(KEY).score) == (40.0, 40.0, 40.0)
    assert files(store) == [f"{KEY.digest}.json"]


def test_only_a_fresh_grading_replaces_a_record(store):
    store.keep(KEY, record(40.0))
    assert store.keep(KEY, record(45.0), replace=True).score == 45.0
    assert store.load(KEY).score == 45.0


@pytest.mark.parametrize("other", [Key.of("bob", b"her notebook", "code 1"), Key.of("ada", b"her notebook", "code 2")])
def test_another_student_or_other_code_has_another_record(store, other):
    store.keep(KEY, record())
    assert store.load(other) is None
    assert store.load(Key.of("ada", b"her second notebook", "code 1")) is None


def test_of_many_writers_one_is_accepted_and_all_learn_which(store):
    start = threading.Barrier(16)
    accepted = []

    def write(score):
        start.wait()
        accepted.append(store.keep(KEY, record(score)).score)

    writers = [threading.Thread(target=write, args=(float(score),)) for score in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(set(accepted)) == 1 and store.load(KEY).score == accepted[0]
    assert files(store) == [f"{KEY.digest}.json"]


@pytest.mark.parametrize(
    "text", ["", '{"decides": "code 1"', "[]", '{"decides": "other", "submission": "", "record": {}}']
)
def test_a_file_that_is_cut_off_or_of_another_key_is_not_a_record(store, text):
    store.folder.mkdir(parents=True)
    store.path_of(KEY).write_text(text)
    assert store.load(KEY) is None
    assert store.keep(KEY, record()).score == 40.0
    assert store.load(KEY).score == 40.0


def test_a_disk_without_hard_links_keeps_the_first_record_too(store, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store.keep(KEY, record(40.0))
    assert store.keep(KEY, record(45.0)).score == 40.0
    assert files(store) == [f"{KEY.digest}.json"]


def test_a_full_disk_leaves_no_record_and_no_half_file(store, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.keep(KEY, record())
    assert store.load(KEY) is None and files(store) == []


def test_room_for_the_record_is_held_while_its_submission_is_executed(store, monkeypatch):
    with store.room(KEY) as leave:
        assert [path.stat().st_size for path in store.folder.glob(".*.room")] == [256 * 1024]
        leave()
        assert files(store) == []
        store.keep(KEY, record())
    assert files(store) == [f"{KEY.digest}.json"]


CLAIM = """
import sys
from pathlib import Path
from threeloops_grader.worklist.store import Key, RecordStore
print(RecordStore(Path(sys.argv[1]), "90_toy").claim(Key.of("ada", b"her notebook", "code 1")), flush=True)
sys.stdin.read()
"""


def test_a_claim_ends_with_its_process(store, tmp_path):
    words = [sys.executable, "-c", CLAIM, str(tmp_path)]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "True\n"
        assert not store.claim(KEY)
        assert store.claim(Key.of("bob", b"her notebook", "code 1")), "a claim is for one submission"
    finally:
        other.kill()
        other.communicate()
    assert store.claim(KEY)


def test_a_disk_without_locks_grants_every_claim(store, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    assert store.claim(KEY)


def test_executed_cells_are_kept_beside_the_record(store):
    executed = Executed({"mean": {"execution_count": 3, "outputs": []}}, ["a note"])
    assert store.load_executed(KEY) is None
    store.keep_executed(KEY, executed)
    assert store.load_executed(KEY) == executed
    assert list(store.others()) == [], "they are not records"


def test_every_student_is_in_exactly_one_share_which_only_the_name_decides():
    students = [f"student {number}" for number in range(1000)]
    shares = [Share(index, 16) for index in range(16)]
    assert all(sum(share.holds(student) for share in shares) == 1 for student in students)
    sizes = [sum(share.holds(student) for student in students) for share in shares]
    assert min(sizes) > 35 and max(sizes) < 95, "the mean is 62.5"
    assert [share_of(name, 16) for name in ("ada", "bob", "cyd", "Zoë")] == EXPECTED


EXPECTED = [0xD, 0xD, 0xC, 0x1]
"""The 15th digit of `printf ada | sha256sum`, and so on. They must stay: all machines of a class have to agree."""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("5/4", "numbered from 0, so the last of 4 is 3/4"),
        ("4/4", "numbered from 0, so the last of 4 is 3/4"),
        ("0/0", "there are 0 shares; expected 1 to 10,000"),
        ("0/10001", "there are 10001 shares"),
        ("1", "expected I/N"),
        ("-1/4", "expected I/N"),
        ("1/4/2", "expected I/N"),
        ("", "expected I/N"),
        ("٣/4", "expected I/N"),
    ],
)
def test_a_share_that_does_not_exist_is_refused(text, reason):
    with pytest.raises(LabError, match=reason):
        Share.parse(text)
    assert str(Share.parse("3/4")) == "3/4"
