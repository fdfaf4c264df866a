"""Records of several folders make one class, and a gap or a contradiction is named instead of filled. Nothing is
executed.
"""

from pathlib import Path

import nbformat
import pytest
from rich.console import Console
from threeloops_grader.course.cluster_command import ClassJob, on_slurm
from threeloops_grader.course.course import submissions
from threeloops_grader.grading import records
from threeloops_grader.grading.grade import Options
from threeloops_grader.release.release import release
from threeloops_grader.worklist import grade_class, slurm
from threeloops_grader.worklist import merge as merging
from threeloops_grader.worklist.grade_class import decides
from threeloops_grader.worklist.merge import merge, ungraded
from threeloops_grader.worklist.store import Executed, Key, RecordStore
from toy_course import make_course

OPTIONS = Options("bwrap")
STUDENTS = ("ada", "bob", "cyd")


class Classroom:
    def __init__(self, root: Path):
        self.lab = make_course(root / "course")
        release([self.lab])
        self.folder = root / "submitted"
        self.root = root
        notebook, _ = submissions(self.lab)["reference"]
        for student in STUDENTS:
            path = self.path_of(student)
            path.parent.mkdir(parents=True)
            nbformat.write(notebook, path)

    def path_of(self, student: str) -> Path:
        return self.folder / student / self.lab.slug / f"{self.lab.slug}.ipynb"

    def key(self, student: str, code: str = "") -> Key:
        return Key.of(student, self.path_of(student).read_bytes(), code or decides(self.lab, OPTIONS))

    def store(self, folder: str) -> RecordStore:
        return RecordStore(self.root / folder, self.lab.slug)

    def keep(self, folder: str, student: str, score: float = 40.0, seconds: float = 0.5, code: str = "") -> None:
        tests = [records.Test("mean_test", score, 40.0, "fine")]
        record = records.Record(student, score, 100.0, "graded", seconds, "cpu", "complete", [], tests)
        self.store(folder).keep(self.key(student, code), record)

    def merge(self, *folders: str) -> merging.Merged:
        return merge(self.folder, self.lab, OPTIONS, [self.root / name for name in folders])


@pytest.fixture
def room(tmp_path):
    return Classroom(tmp_path)


def test_the_records_of_two_folders_are_one_class_in_the_order_of_its_students(room):
    room.keep("second", "ada")
    room.keep("first", "cyd")
    room.keep("first", "bob")
    merged = room.merge("first", "second")
    assert merged.is_complete and merged.faults() == []
    assert [record.student for record in merged.report.records] == list(STUDENTS)


def test_a_submission_without_a_record_is_named(room):
    room.keep("first", "bob")
    merged = room.merge("first", "second")
    assert not merged.is_complete and merged.missing == ["ada", "cyd"]
    assert "2 submissions without a record (ada, cyd): grade their shares, then merge again" in merged.faults()


def test_a_record_of_other_code_is_refused_and_named(room):
    room.keep("first", "ada")
    room.keep("first", "bob", code="other code")
    room.keep("first", "cyd")
    merged = room.merge("first")
    assert (merged.stale, merged.missing) == (["bob"], [])
    assert "graded by other code, with another version of the lab, or with other options (bob)" in merged.faults()[0]


def test_a_record_of_an_earlier_submission_does_not_count(room):
    for student in STUDENTS:
        room.keep("first", student)
    room.path_of("ada").write_text(room.path_of("ada").read_text() + "\n")
    assert room.merge("first").missing == ["ada"]


def test_two_records_that_agree_are_one_and_two_that_differ_are_none(room):
    for student in STUDENTS:
        room.keep("first", student, seconds=0.5)
    room.keep("second", "ada", seconds=0.7)
    merged = room.merge("first", "second")
    assert merged.is_complete and merged.double == ["ada"]
    room.keep("second", "bob", score=35.0)
    merged = room.merge("first", "second")
    assert not merged.is_complete and merged.contradicted == ["bob"]
    assert "two records that give different results (bob)" in merged.faults()[0]


def test_a_submission_that_cannot_be_graded_needs_no_record(room):
    room.keep("first", "ada")
    room.path_of("bob").write_text("not json")
    room.path_of("cyd").unlink()
    merged = room.merge("first")
    assert merged.is_complete
    assert [record.status for record in merged.report.records] == ["graded", "failed", "failed"]


def test_what_is_left_are_the_submissions_without_a_record(room, monkeypatch):
    store = room.store("first")
    room.keep("first", "ada")
    room.path_of("bob").write_text("not json")
    assert [s.student for s in ungraded(room.folder, room.lab, OPTIONS, store)] == ["cyd"]
    monkeypatch.setattr(merging, "_FEW", 1)
    assert [s.student for s in ungraded(room.folder, room.lab, OPTIONS, store)] == ["bob", "cyd"], "not looked into"
    again = ungraded(room.folder, room.lab, OPTIONS, store, was_graded=True)
    assert [s.student for s in again] == ["cyd"], "after a run, bob's file has to be looked into"


def test_slurm_gets_refused_files_once_and_the_class_is_complete_without_them(room, monkeypatch):
    """A class of ten thousand may have more than a few of them, and no number of attempts gives these a record."""
    monkeypatch.setattr(merging, "_FEW", 0)
    for student in STUDENTS:
        room.path_of(student).write_text("not json")
    looks = []
    monkeypatch.setattr(slurm, "require_slurm", lambda: None)
    monkeypatch.setattr(slurm, "run_on_slurm", lambda left, *_: looks.extend([left(), left()]))
    job = ClassJob(room.lab, room.folder, [room.root / "first"])
    report = on_slurm(job, 1, {"workers": 4}, Console(quiet=True), fresh=False)
    assert [len(commands) for commands in looks] == [1, 0]
    assert [record.status for record in report.records] == ["failed"] * 3


def test_a_class_keeps_its_records_if_slurm_refuses_to_grade_it_again(room, monkeypatch):
    """Found with --fresh and a misspelt partition: all records were gone."""
    for student in STUDENTS:
        room.keep("first", student)

    def refuse(left, *_):
        assert len(left()) == 1, "all are to be graded"
        raise slurm.Refused("no such partition")

    monkeypatch.setattr(slurm, "require_slurm", lambda: None)
    monkeypatch.setattr(slurm, "run_on_slurm", refuse)
    job = ClassJob(room.lab, room.folder, [room.root / "first"])
    with pytest.raises(slurm.Refused):
        on_slurm(job, 1, {"workers": 4}, Console(quiet=True), fresh=True)
    assert room.merge("first").is_complete


def test_no_submission_is_claimed_or_begun_before_the_warm_processes_run(room, monkeypatch):
    """They take seconds to start, and a worker lost meanwhile used to hold up the submissions that it had claimed."""
    steps = []
    record = records.Record("ada", 40.0, 100.0, "graded", 0.5, "cpu", "complete", [], [])

    def note(step, result):
        return lambda *_, **__: steps.append(step) or result

    monkeypatch.setattr(grade_class, "start_processes", note("start", None))
    monkeypatch.setattr(RecordStore, "claim", note("claim", True))
    monkeypatch.setattr(grade_class, "grade_notebook", note("execute", record))
    for student in ("bob", "cyd"):
        room.path_of(student).write_text("not json")
    options = Options("bwrap", records=room.root / "first")
    report = grade_class.grade_class(room.folder, room.lab, options)
    assert steps == ["start", "claim", "execute"], "and not at all for files that cannot be graded"
    assert [record.status for record in report.records] == ["graded", "failed", "failed"]
    grade_class.grade_class(room.folder, room.lab, options)
    assert len(steps) == 3, "nor if all records are there"


def test_with_notebooks_a_record_alone_is_not_enough(room):
    store = room.store("first")
    options = Options("bwrap", keep_executed=True)
    for student in STUDENTS:
        room.keep("first", student)
    store.keep_executed(room.key("ada"), Executed({}, []))
    assert [s.student for s in ungraded(room.folder, room.lab, options, store)] == ["bob", "cyd"]
