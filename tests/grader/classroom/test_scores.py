"""Scores, groups, attempts and refusals in classes of a few rows, which need no grading."""

import os
import shutil
import sqlite3
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from threeloops_grader.classroom.commands.term import extend
from threeloops_grader.classroom.deadlines import best_attempt
from threeloops_grader.classroom.deadlines.handed_in import HandIns
from threeloops_grader.classroom.deadlines.penalties import Penalties
from threeloops_grader.classroom.enrolment import enrol, gradebook
from threeloops_grader.classroom.exchange import swap
from threeloops_grader.classroom.exchange.attempts import attempts_of, keep
from threeloops_grader.classroom.register import settings as register
from threeloops_grader.classroom.register.groups import Groups, Member
from threeloops_grader.classroom.register.roster import Student, save_roster
from threeloops_grader.classroom.register.settings import LatePolicy, Settings
from threeloops_grader.classroom.results.account import account, write_refusals
from threeloops_grader.classroom.results.scores import Row, class_scores
from threeloops_grader.submissions.folder import student_name
from toy_course import make_course

DUE = datetime(2030, 1, 31, 12)
COMPOSED = "jos\u00e9"
SEPARATE = "jose\u0301"


@pytest.fixture
def lab(tmp_path):
    return make_course(tmp_path)


@pytest.fixture
def book(lab):
    """A gradebook that knows the lab and nobody's submission."""
    with gradebook(lab.root) as opened:
        opened.add_assignment(lab.slug, duedate=DUE)
        yield opened


def hand_in(lab, student, text):
    path = lab.root / "submitted" / student / lab.slug / f"{lab.slug}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_who_is_in_another_group_for_a_lab_hands_in_for_that_group_alone(lab, book):
    """Ada and Bob work together, except in this lab, in which Ada works with Cyd."""
    for student, days in {"ada": 2, "bob": 1}.items():
        book.add_student(student)
        book.add_submission(lab.slug, student, timestamp=DUE + timedelta(days=days))
    book.add_student("cyd")
    members = [Member("A", "ada"), Member("A", "bob"), Member("B", "ada", lab.slug), Member("B", "cyd", lab.slug)]
    for order in (("ada", "bob", "cyd"), ("bob", "cyd", "ada")):
        hand_ins = HandIns(book, lab.root, Groups(members))
        counting = {student: hand_ins.counting(student, lab.slug).student for student in order}
        assert counting == {"ada": "ada", "bob": "bob", "cyd": "ada"}


def test_a_folder_that_spells_the_id_in_another_way_is_not_missing(lab, book):
    students = [Student(COMPOSED)]
    enrol(book, students)
    hand_in(lab, SEPARATE, "[]")
    (row,), strangers = class_scores(book, lab, students)
    assert (row.status, row.refused, strangers) == ("ungraded", True, [])
    assert "= 0 graded + 1 ungraded + 0 missing" in account(lab, [row], strangers)


def test_a_gradebook_that_is_busy_stops_no_scores(lab, book):
    """Another program writes to it: the penalties are computed, and nbgrader's copies stay as they were."""
    register.save(Settings(late=LatePolicy(10)), lab.root)
    book.add_notebook(lab.slug, lab.slug)
    book.add_grade_cell("test", lab.slug, lab.slug, max_score=100, cell_type="code")
    for student in ("ada", "bob"):
        book.add_student(student)
        book.add_submission(lab.slug, student, timestamp=DUE + timedelta(hours=1))
        book.find_grade("test", lab.slug, lab.slug, student).auto_score = 80.0
    book.db.commit()
    book.db.connection().exec_driver_sql("PRAGMA busy_timeout = 10")
    writer = sqlite3.connect(lab.root / "gradebook.db", isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    try:
        rows, _ = class_scores(book, lab, [Student("ada"), Student("bob")])
        book.db.expunge_all()
        Penalties(book, lab.root).refresh()
    finally:
        writer.execute("ROLLBACK")
        writer.close()
    assert [row.score for row in rows] == [pytest.approx(72.0)] * 2
    assert book.find_submission(lab.slug, "ada").late_submission_penalty in (None, 0.0)
    assert Penalties(book, lab.root).refresh() == 2
    assert book.find_submission(lab.slug, "ada").late_submission_penalty == pytest.approx(8.0)


def test_who_dropped_out_gets_no_page_about_a_refused_submission(lab):
    refused = {"status": "ungraded", "max_score": 100.0, "reason": "refused: it is empty", "refused": True}
    gone = {**refused, "status": "dropped", "reason": "not on the newest roster; no points stay in the gradebook"}
    pages = write_refusals(lab, [Row(Student("ada"), **refused), Row(Student("bob"), **gone)])
    assert [page.parents[1].name for page in pages] == ["ada"]
    assert "Your submission was refused: it is empty." in pages[0].read_text()


def test_an_extension_of_a_lab_without_a_due_date_is_removed(lab, monkeypatch, capsys):
    monkeypatch.setenv("THREELOOPS_ROOT", str(lab.root))
    register.save(Settings(), lab.root)
    save_roster(lab.root / "class/roster.json", [Student("ada")])
    (lab.root / "more.csv").write_text("student,lab,due\nada,90,none\n")
    extend(lab.root / "more.csv")
    assert "ada: 90_toy is without a due date in the gradebook (no extension)" in capsys.readouterr().out


def play_grading(monkeypatch, points):
    """Grade attempts by the texts of their notebooks, as `threeloops grade` names the students."""

    def grade_class(folder, lab, options):
        records = [
            SimpleNamespace(student=student_name(path.parents[1].name), score=points[path.read_text()])
            for path in folder.glob(f"*/{lab.slug}/{lab.slug}.ipynb")
        ]
        return SimpleNamespace(records=[SimpleNamespace(**vars(record), status="graded") for record in records])

    monkeypatch.setattr(best_attempt, "grade_class", grade_class)


def in_time(student, time):
    """The share of the points that is lost."""
    return 0.0


def hand_in_twice(lab, student):
    """Two downloads that say no time were collected one after the other."""
    current = hand_in(lab, student, "one")
    os.utime(current, (1e9, 1e9))
    keep(lab.root, lab.slug, student, current.parent)
    return hand_in(lab, student, "two")


def test_attempts_without_a_time_keep_their_order_when_one_is_placed(lab, monkeypatch):
    """With equal points the earliest counts, also when grading is run again: points given by hand are for that one."""
    play_grading(monkeypatch, {"one": 50.0, "two": 50.0})
    current = hand_in_twice(lab, "ada")
    for _ in range(3):
        best_attempt.place_best(lab, in_time, "none", 1)
        assert current.read_text() == "one"
    texts = [(attempt.folder / current.name).read_text() for attempt in attempts_of(lab.root, lab.slug, "ada")]
    assert texts == ["one", "two"]


def test_if_all_attempts_were_refused_the_latest_is_the_one_that_is_named(lab, monkeypatch):
    """Its fault is what the student has to mend."""
    monkeypatch.setattr(best_attempt, "grade_class", lambda *_: SimpleNamespace(records=[]))
    current = hand_in_twice(lab, "ada")
    for _ in range(2):
        (line,) = best_attempt.place_best(lab, in_time, "none", 1)
        assert line == "ada: attempt 2 of 2 counts (refused, refused points after lateness)"
        assert current.read_text() == "two"


def test_the_best_attempt_is_the_best_with_the_slip_days_that_the_student_has_left(lab, book, monkeypatch):
    """Ada's late attempt costs nothing, because nothing of her slip days is spent; Bob spent his on an earlier lab."""
    register.save(Settings(late=LatePolicy(50, slip_days=1), attempts="best"), lab.root)
    play_grading(monkeypatch, {"one": 60.0, "two": 100.0})
    book.add_assignment("80_before", duedate=DUE - timedelta(days=9))
    for student, late in (("ada", 0), ("bob", 1)):
        book.add_student(student)
        book.add_submission("80_before", student, timestamp=DUE - timedelta(days=9) + timedelta(days=late))
        for number, text in enumerate(("one", "two")):
            current = hand_in(lab, student, text)
            (current.parent / "timestamp.txt").write_text(f"{DUE + timedelta(hours=number)} UTC")
            keep(lab.root, lab.slug, student, current.parent)
    penalties = Penalties(book, lab.root)
    lines = best_attempt.place_best(
        lab, lambda student, time: penalties.lateness_at(student, lab.slug, time).share, "none", 1
    )
    assert lines == [
        "ada: attempt 2 of 2 counts (60, 100 points after lateness)",
        "bob: attempt 1 of 2 counts (60, 50 points after lateness)",
    ]


def test_another_rule_lets_another_attempt_count(lab):
    current = hand_in_twice(lab, "ada")
    keep(lab.root, lab.slug, "ada", current.parent)
    assert best_attempt.place_last(lab, "last") == []
    assert best_attempt.place_last(lab, "first 1") == ["ada: attempt 1 of 2 at 90_toy counts now"]
    assert current.read_text() == "one"
    assert best_attempt.place_last(lab, "first 3") == ["ada: attempt 2 of 2 at 90_toy counts now"]
    assert current.read_text() == "two" and best_attempt.place_last(lab, "last") == []


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_that_is_replaced_is_never_missing_in_between(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(swap, "_exchanged", lambda *_: False)
    seen = []
    for name in ("current", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name.txt").write_text(name)
    remove = shutil.rmtree
    monkeypatch.setattr(
        shutil, "rmtree", lambda path: (seen.append((tmp_path / "current/name.txt").read_text()), remove(path))
    )
    swap.put_in_place(tmp_path / "new", tmp_path / "current")
    assert seen == ["new" if can_exchange else "current"], "what a command that is killed here would leave"
    assert [path.name for path in tmp_path.iterdir()] == ["current"]
    assert (tmp_path / "current/name.txt").read_text() == "new"


def test_the_best_attempt_of_a_folder_with_a_separate_accent_counts(lab, monkeypatch):
    """Records of grading spell the name with a composed one."""
    play_grading(monkeypatch, {"one": 50.0, "two": 60.0})
    hand_in_twice(lab, SEPARATE)
    (line,) = best_attempt.place_best(lab, in_time, "none", 1)
    assert line == f"{COMPOSED}: attempt 2 of 2 counts (50, 60 points after lateness)"
