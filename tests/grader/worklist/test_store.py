"""The records of a class: each is accepted once, whole, whoever writes it and however often."""

import errno
import os
import subprocess
import sys
import threading

import pytest
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.grading import records
from threeloops_grader.worklist.share import Share, equal_shares, shares_for, split
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


def test_records_that_are_forgotten_come_back_only_if_nothing_was_graded(store):
    other = Key.of("bob", b"his notebook", "code 1")
    for key in (KEY, other):
        store.keep(key, record(40.0))
    with pytest.raises(ValueError), store.forgotten("code 1", unless=ValueError):
        assert store.load(KEY) is None
        store.keep(KEY, record(45.0))
        raise ValueError
    assert (store.load(KEY).score, store.load(other).score) == (45.0, 40.0), "a new record counts"
    with store.forgotten("another code", unless=ValueError):
        assert store.load(KEY) is not None
    with pytest.raises(KeyboardInterrupt), store.forgotten("code 1", unless=ValueError):
        raise KeyboardInterrupt
    assert store.load(KEY) is None and files(store) == []


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
    holders = [[share.index for share in shares if share.holds(name)] for name in ("ada", "bob", "cyd", "Zoë")]
    assert holders == EXPECTED


EXPECTED = [[0xD], [0xD], [0xC], [0x1]]
"""The 15th digit of `printf ada | sha256sum`, and so on. They must stay: all machines of a class have to agree."""


@pytest.mark.parametrize("size", [0, 1, 9, 30, 1000, 5000])
@pytest.mark.parametrize("workers", [1, 16, 200])
def test_the_shares_of_a_class_hold_every_student_once(size, workers):
    students = [f"student {number}" for number in range(size)]
    shares = shares_for(size, workers)
    holders = [[share for share in shares if share.holds(student)] for student in students]
    assert all(len(each) == 1 for each in holders)
    held = split(students, shares)
    assert [(share, name) for share in held for name in held[share]] == sorted(
        ((share, name) for (share,), name in zip(holders, students, strict=True)),
        key=lambda pair: shares.index(pair[0]),
    )
    assert [Share.parse(str(share)) for share in shares] == shares


def test_the_first_shares_are_large_and_the_last_ones_small():
    """10,000 students on 16 workers: two rounds of tasks with 312 each, of which the last round is halved once."""
    sizes = [round(10_000 / share.count) for share in shares_for(10_000, 16)]
    assert sizes == 16 * [312] + 32 * [156]


@pytest.mark.parametrize(
    ("size", "workers", "tasks"), [(30, 16, 3), (300, 16, 16), (10**6, 16, 1000), (10**6, 900, 1000)]
)
def test_no_task_is_smaller_than_its_start_is_worth_and_an_array_has_at_most_a_thousand(size, workers, tasks):
    assert len(shares_for(size, workers)) == tasks


def test_a_given_number_of_shares_is_equal_shares():
    assert equal_shares(3) == [Share(0, 3), Share(1, 3), Share(2, 3)]
    assert list(split(["ada", "cyd"], equal_shares(16))) == [Share(0xC, 16), Share(0xD, 16)], "the others are empty"


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
