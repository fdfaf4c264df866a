"""What lateness costs is decided whenever scores are read, so that no later change escapes a penalty or keeps an old
one."""

import csv
import os
import shutil

import nbformat
import pytest
from grading import REPOSITORY, nbgrader
from threeloops_grader.classroom.enrolment import gradebook
from threeloops_grader.classroom.register.roster import saved_roster
from threeloops_grader.classroom.results.scores import class_scores
from threeloops_grader.sandbox import bwrap
from toy_course import make_course
from warm_commands import warm

SANDBOX = "none" if bwrap.why_not() else "auto"
ROSTER = "student_id,first_name,last_name\nada,Ada,A\nbob,Bob,B\ncyd,Cyd,C\neve,Eve,E\n"
HANDED_IN = {"ada": "2030-01-31 22:58:00 UTC", "bob": "2030-02-01 12:00:00 UTC", "cyd": "2030-02-03 12:00:00 UTC"}
"""Ada is in time, Bob a day late, Cyd three days; Eve hands in nothing."""


def threeloops(root, *words, code=0):
    env = {**os.environ, "THREELOOPS_ROOT": str(root), "THREELOOPS_EXCHANGE": str(root / "exchange")}
    done = warm().run(["threeloops_grader.cli", *words], root, env, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A graded class; nobody changes it."""
    lab = make_course(tmp_path_factory.mktemp("course"))
    root = lab.root
    shutil.copy(REPOSITORY / "nbgrader_config.py", root)
    for folder in ("lib/threeloops", "grader", "scripts"):
        (root / folder).parent.mkdir(exist_ok=True)
        (root / folder).symlink_to(REPOSITORY / folder)
    (root / "roster.csv").write_text(ROSTER)
    policy = ("--late-percent", "10", "--late-most", "50", "--reflection", "20")
    threeloops(
        root, "class", "init", "roster.csv", "--due", "90=2030-01-31 23:59", "--timezone", "Europe/Berlin", *policy
    )
    threeloops(root, "class", "release", "90")
    for student, when in HANDED_IN.items():
        folder = root / "submitted" / student / lab.slug
        folder.mkdir(parents=True)
        nbformat.write(lab.master(), folder / f"{lab.slug}.ipynb")
        (folder / "timestamp.txt").write_text(when)
    threeloops(root, "class", "grade", "90", "--sandbox", SANDBOX)
    return lab


@pytest.fixture
def lab(graded, tmp_path):
    """A copy of the graded class."""
    shutil.copytree(graded.root, tmp_path / "course", symlinks=True)
    return type(graded)(graded.slug, tmp_path / "course")


def scores(lab):
    with gradebook(lab.root) as book:
        rows, _ = class_scores(book, lab, saved_roster(lab.root / "class/roster.json"))
    return {row.student.id: row.score for row in rows}


def give(lab, student, points):
    """Give manual points for the reflection, as formgrader does."""
    with gradebook(lab.root) as book:
        grade = book.find_grade("reflection", lab.slug, lab.slug, student)
        grade.manual_score, grade.needs_manual_grade = points, False
        book.db.commit()


def copies(lab):
    """The penalties that nbgrader's gradebook holds, which its own pages and exports use."""
    with gradebook(lab.root) as book:
        return {s.student_id: s.late_submission_penalty or 0.0 for s in book.assignment_submissions(lab.slug)}


def test_each_day_begun_costs(lab):
    assert scores(lab) == {"ada": 100.0, "bob": 90.0, "cyd": 70.0, "eve": 0.0}


def test_manual_points_that_come_later_lose_their_share_too(lab):
    give(lab, "ada", 20)
    give(lab, "cyd", 20)
    assert scores(lab) == {"ada": 120.0, "bob": 90.0, "cyd": pytest.approx(120 * 0.7), "eve": 0.0}
    assert copies(lab) == {"ada": 0.0, "bob": pytest.approx(10.0), "cyd": pytest.approx(36.0)}


def test_manual_points_that_are_taken_back_take_their_penalty_along(lab):
    with gradebook(lab.root) as book:
        for name in ("mean_test", "rescale_test_values", "rescale_test_zeros"):
            book.find_grade(name, lab.slug, lab.slug, "cyd").manual_score = 0.0
        book.db.commit()
    assert scores(lab)["cyd"] == 0.0
    assert copies(lab)["cyd"] == 0.0, "a penalty above the score would show a negative score"


def test_an_exercise_that_is_graded_alone_changes_the_penalty(lab):
    notebook = lab.root / "submitted/cyd" / lab.slug / f"{lab.slug}.ipynb"
    answers = nbformat.read(notebook, as_version=4)
    next(cell for cell in answers.cells if cell.id == "mean").source = "def mean(values):\n    return 0.0\n"
    nbformat.write(answers, notebook)
    words = ("grade", "--lab", "90", "--submissions", "submitted", "--only", "mean", "--sandbox", SANDBOX)
    threeloops(lab.root, *words, "--gradebook", f"sqlite:///{lab.root}/gradebook.db", code=1)
    assert copies(lab) == {"ada": 0.0, "bob": pytest.approx(10.0), "cyd": pytest.approx(18.0)}


def test_points_fed_to_the_gradebook_know_when_they_were_handed_in(lab):
    shutil.rmtree(lab.root / "autograded")
    with gradebook(lab.root) as book:
        for student in HANDED_IN:
            book.remove_submission(lab.slug, student)
    words = ("grade", "--lab", "90", "--submissions", "submitted", "--sandbox", SANDBOX)
    threeloops(lab.root, *words, "--gradebook", f"sqlite:///{lab.root}/gradebook.db", code=0)
    assert copies(lab) == {"ada": 0.0, "bob": pytest.approx(10.0), "cyd": pytest.approx(30.0)}


def test_another_policy_or_due_date_applies_to_what_is_graded_already(lab):
    threeloops(lab.root, "class", "init", "roster.csv", "--late-percent", "20")
    assert scores(lab) == {"ada": 100.0, "bob": 80.0, "cyd": 50.0, "eve": 0.0}
    threeloops(lab.root, "class", "init", "roster.csv", "--due", "90=2030-02-02 13:00+01:00")
    assert scores(lab) == {"ada": 100.0, "bob": 100.0, "cyd": 60.0, "eve": 0.0}


def test_nbgraders_own_export_and_feedback_take_the_same_penalty(lab):
    give(lab, "cyd", 20)
    nbgrader(lab.root, "export", "--to", "grades.csv")
    with (lab.root / "grades.csv").open() as file:
        table = {row["student_id"]: row for row in csv.DictReader(file)}
    assert float(table["cyd"]["late_submission_penalty"]) == pytest.approx(36.0)
    assert float(table["cyd"]["score"]) == pytest.approx(84.0)
    give(lab, "cyd", 10)
    nbgrader(lab.root, "generate_feedback", lab.slug, "--force")
    page = (lab.root / "feedback/cyd" / lab.slug / f"{lab.slug}.html").read_text()
    assert "77 of 120 points, 33 of which are lost for lateness" in page
