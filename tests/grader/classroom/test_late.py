"""What lateness costs is decided whenever scores are read, so that no later change escapes a penalty or keeps an old
one."""

import csv
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from grading import nbgrader
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops_grader.classroom.deadlines.penalties import extensions_path, groups_path
from threeloops_grader.classroom.enrolment import gradebook
from threeloops_grader.classroom.register import settings as register
from threeloops_grader.classroom.register.extensions import Extension, merged, save_extensions
from threeloops_grader.classroom.register.groups import Member, save_groups
from threeloops_grader.classroom.register.roster import saved_roster
from threeloops_grader.classroom.register.settings import LatePolicy
from threeloops_grader.classroom.results.account import account
from threeloops_grader.classroom.results.scores import class_scores
from toy_class import SANDBOX, make_class_course, threeloops

ROSTER = "student_id,first_name,last_name\nada,Ada,A\nbob,Bob,B\ncyd,Cyd,C\neve,Eve,E\n"
HANDED_IN = {"ada": "2030-01-31 22:58:00 UTC", "bob": "2030-02-01 12:00:00 UTC", "cyd": "2030-02-03 12:00:00 UTC"}
"""Ada is in time, Bob a day late, Cyd three days; Eve hands in nothing."""


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A graded class; nobody changes it."""
    lab = make_class_course(tmp_path_factory.mktemp("course"))
    root = lab.root
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
    assert scores(lab) == {"ada": 100.0, "bob": 100.0, "cyd": 80.0, "eve": 0.0}


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
    assert "77 of 120 points, after 33 were lost for lateness" in page


def test_a_due_date_that_was_changed_in_formgrader_counts_and_stays(lab):
    with gradebook(lab.root) as book:
        book.update_or_create_assignment(lab.slug, duedate="2030-02-02 12:00:00 UTC")
    assert scores(lab) == {"ada": 100.0, "bob": 100.0, "cyd": 90.0, "eve": 0.0}
    told = threeloops(lab.root, "class", "init", "roster.csv")
    assert "90_toy is due 2030-02-02 13:00 CET (changed in formgrader)" in told
    assert scores(lab)["cyd"] == 90.0


def test_reflections_that_nobody_has_marked_are_named_once_per_hand_in(lab):
    wait = "to be marked by hand (0 points until then): "
    write_reflections(lab, "ada", "bob", "cyd")
    assert f"{wait}ada, bob, cyd\n" in threeloops(lab.root, "class", "check", "90")
    give(lab, "ada", 0)
    assert f"{wait}bob, cyd\n" in threeloops(lab.root, "class", "check", "90")
    (lab.root / "groups.csv").write_text("group,student\nA,bob\nA,cyd\n")
    threeloops(lab.root, "class", "groups", "groups.csv")
    assert f"{wait}bob\n" in threeloops(lab.root, "class", "export", "90")
    give(lab, "bob", 5)
    assert "marked by hand" not in threeloops(lab.root, "class", "check", "90")


def write_reflections(lab, *students):
    """Give the gradebook what it holds for a reflection that was written: no automatic points."""
    with gradebook(lab.root) as book:
        for student in students:
            book.find_grade("reflection", lab.slug, lab.slug, student).auto_score = None
        book.db.commit()


def extend(lab, *rows, code=0):
    (lab.root / "more.csv").write_text("\n".join(["student,lab,due,hours,factor", *rows]) + "\n")
    return threeloops(lab.root, "class", "extend", "more.csv", code=code)


def test_an_extension_is_for_one_student_and_every_table_knows_it(lab):
    told = extend(lab, "bob,90,2030-02-01,,", "cyd,*,,24,")
    assert "bob: 90_toy is due 2030-02-01 23:59:59 CET\n" in told
    assert "cyd: 24 hours more for every lab, also those that get a due date later" in told
    assert "late penalties changed: 2" in told
    assert scores(lab) == {"ada": 100.0, "bob": 100.0, "cyd": 80.0, "eve": 0.0}
    nbgrader(lab.root, "autograde", lab.slug, "--force", f"--WalledExecute.sandbox={SANDBOX}")
    assert copies(lab) == {"ada": 0.0, "bob": 0.0, "cyd": pytest.approx(20.0)}, "as nbgrader's own button writes them"
    told = threeloops(lab.root, "class", "export", "90")
    assert "90_toy_lateness.csv" in told
    with (lab.root / "class/90_toy_lateness.csv").open() as file:
        table = {row["student"]: row for row in csv.DictReader(file)}
    assert (
        table["cyd"] | {"extension": "24 hours more", "percent lost": "20", "points lost": "20", "score": "80"}
        == (table["cyd"])
    )
    assert (
        "4 students, 3 handed in, 3 graded, 1 late, 2 with an extension."
        in (lab.root / "class/90_toy_report.html").read_text()
    )
    extend(lab, "bob,90,none,,")
    assert scores(lab)["bob"] == 90.0


def test_the_log_says_who_got_more_time_and_who_shares_a_submission(lab):
    extend(lab, "bob,90,2030-02-02,,", "cyd,*,,24,")
    (lab.root / "groups.csv").write_text("group,student\nA,bob\nA,eve\n")
    threeloops(lab.root, "class", "groups", "groups.csv")
    (lab.root / "groups.csv").write_text("group,student,lab\nB,cyd,90\nB,eve,90\n")
    threeloops(lab.root, "class", "groups", "groups.csv")
    (lab.root / "newer.csv").write_text("student_id\nada\ncyd\neve\n")
    threeloops(lab.root, "class", "init", "newer.csv")
    lines = threeloops(lab.root, "class", "log", "BOB").splitlines()
    assert [line.rpartition(": ")[2] for line in lines[-4:]] == [
        "bob until 2030-02-02T22:59:59+00:00 for 90_toy",
        "bob in group A for every lab",
        "bob in no group",
        "bob has left the class (not on the newest roster)",
    ]
    assert "cyd 24 hours more for every lab" in threeloops(lab.root, "class", "log", "90", "cyd")
    assert "bob no points -> 100" in lines[0], "all labs, as `class log 90 bob` for one"
    said = threeloops(lab.root, "class", "log", "mal", code=2)
    assert "there is no lab 'mal'" in said and "is called 'mal' either" in said


def test_a_factor_counts_from_the_release_or_from_what_init_says(lab):
    threeloops(lab.root, "class", "init", "roster.csv", "--opened", "90=2030-01-31")
    extend(lab, "bob,90,,,1.6")
    assert scores(lab)["bob"] == 100.0, "a date alone opens a lab at the beginning of that day: 14 of 24 hours more"


def test_without_a_submission_grading_names_the_step_before(lab):
    for folder in ("submitted", "autograded"):
        shutil.rmtree(lab.root / folder)
    with gradebook(lab.root) as book:
        for student in HANDED_IN:
            book.remove_submission(lab.slug, student)
    told = threeloops(lab.root, "class", "grade", "90", "--sandbox", SANDBOX, code=2)
    assert "there is no submission to grade; run `threeloops class collect 90` first" in told


def test_each_step_before_its_time_names_the_step_that_comes_first(lab):
    told = threeloops(lab.root, "class", "collect", "90", "--from", "roster.csv", code=2)
    assert "roster.csv is not a download; expected a platform's zip file" in told and "`threeloops class init`" in told
    assert "there is no file or folder nowhere" in threeloops(
        lab.root, "class", "collect", "90", "--from", "nowhere", code=2
    )
    shutil.rmtree(lab.root / "autograded")
    told = threeloops(lab.root, "class", "feedback", "90", code=2)
    assert "nobody's 90_toy is graded, so there are no pages to write; run `threeloops class grade 90` first" in told
    shutil.rmtree(lab.root / "exchange")
    told = threeloops(lab.root, "class", "collect", "90", code=2)
    assert "there is no folder" in told and "`threeloops class release 90` makes it" in told and "--from" in told


def test_a_table_with_a_stranger_stores_nothing(lab):
    told = extend(lab, "bob,90,2030-02-02,,", "mal,90,,24,", code=2)
    assert "line 3: 'mal' is not on the roster" in told
    assert not (lab.root / "class/extensions.json").exists()
    assert scores(lab)["bob"] == 90.0


def test_slip_days_are_spent_before_points(lab):
    told = threeloops(lab.root, "class", "init", "roster.csv", "--slip-days", "4", "--slip-most", "2")
    assert "The first 4 late days of a term are free, at most 2 of them for one lab." in told
    assert scores(lab) == {"ada": 100.0, "bob": 100.0, "cyd": 90.0, "eve": 0.0}
    threeloops(lab.root, "class", "export", "90")
    with (lab.root / "class/90_toy_lateness.csv").open() as file:
        table = {row["student"]: row for row in csv.DictReader(file)}
    assert (table["cyd"]["slip days spent"], table["cyd"]["slip days left"]) == ("2", "2")
    assert "3 slip days spent" in (lab.root / "class/90_toy_report.html").read_text()


def test_one_hand_in_counts_for_a_group_and_each_member_keeps_an_extension(lab):
    (lab.root / "groups.csv").write_text("group,student\nA,bob\nA,eve\n")
    assert "groups: 1, students in them: 2" in threeloops(lab.root, "class", "groups", "groups.csv")
    told = threeloops(lab.root, "class", "check", "90")
    assert "90_toy: 4 on the roster = 4 graded + 0 ungraded + 0 missing" in told
    assert scores(lab) == {"ada": 100.0, "bob": 90.0, "cyd": 70.0, "eve": 90.0}
    extend(lab, "eve,90,,24,")
    assert scores(lab)["eve"] == 100.0
    nbgrader(lab.root, "export", "--to", "grades.csv")
    with (lab.root / "grades.csv").open() as file:
        table = {row["student_id"]: row["score"] for row in csv.DictReader(file)}
    assert table == {"ada": "100.0", "bob": "90.0", "cyd": "70.0", "eve": "100.0"}
    told = threeloops(lab.root, "class", "feedback", "90")
    assert "pages for the other members of a group: 1;" in told
    page = (lab.root / "feedback/eve" / lab.slug / f"{lab.slug}.html").read_text()
    assert "bob handed this in for your group A. You have 100 of 120 points.</p>" in page
    assert "lateness" not in page, "bob's penalty is not eve's"


def test_two_different_hand_ins_of_a_group_are_named_and_the_latest_counts(lab):
    (lab.root / "groups.csv").write_text("group,student\nA,bob\nA,cyd\n")
    threeloops(lab.root, "class", "groups", "groups.csv")
    assert scores(lab)["cyd"] == scores(lab)["bob"] == 90.0, "the same notebook twice: the earlier one"
    told = threeloops(lab.root, "class", "check", "90")
    assert "group A: cyd handed in the same notebook as bob. Mark bob's" in told
    notebook = lab.root / "submitted/cyd" / lab.slug / f"{lab.slug}.ipynb"
    answers = nbformat.read(notebook, as_version=4)
    next(cell for cell in answers.cells if cell.id == "reflection").source = "Something of my own."
    nbformat.write(answers, notebook)
    assert "ungraded: bob: a newer submission is not graded yet" in threeloops(lab.root, "class", "check", "90")
    told = threeloops(lab.root, "class", "grade", "90", "--sandbox", SANDBOX)
    assert "group A: bob handed in another notebook than cyd, whose hand-in counts because it is the latest" in told
    assert scores(lab)["bob"] == scores(lab)["cyd"] == 70.0


def test_who_drops_out_is_named_and_counts_in_no_mean_and_loses_nothing(lab):
    (lab.root / "newer.csv").write_text(
        "student_id,first_name,section,status\nada,Ada,1,\nbob,Bob,2,withdrawn\neve,Eve,2,\n"
    )
    told = threeloops(lab.root, "class", "init", "newer.csv")
    assert "2 students are in the gradebook" in told
    assert "dropped: bob: the roster says withdrawn; work and points stay" in told
    assert "dropped: cyd: not on the newest roster; work and points stay" in told
    told = threeloops(lab.root, "class", "export", "90")
    assert "90_toy: 2 on the roster = 1 graded + 0 ungraded + 1 missing\nmissing: eve\n" in told
    assert "dropped: cyd: not on the newest roster; 70 of 120 points stay in the gradebook" in told
    report = (lab.root / "class/90_toy_report.html").read_text()
    assert "Mean 100.0" in report and "Not counted: 2 who left the class." in report
    assert "cyd" not in (lab.root / "class/90_toy_moodle.csv").read_text()
    with (lab.root / "class/90_toy_report.csv").open() as file:
        sections = [row for row in csv.reader(file) if row[0] == "section"]
    assert [(row[1], row[2], row[3]) for row in sections] == [("1", "100.0", "1"), ("2", "", "1")]
    threeloops(lab.root, "class", "init", "roster.csv")
    assert scores(lab) == {"ada": 100.0, "bob": 90.0, "cyd": 70.0, "eve": 0.0}


WRONG = "def mean(values):\n    return 0.0\n"


def hand_in(lab, when, code=0, **answers):
    """Hand in for Ada by a platform's download."""
    folder = lab.root / "download/ada"
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(lab.answered(answers), folder / f"{lab.slug}.ipynb")
    return threeloops(lab.root, "class", "collect", "90", "--from", "download", "--handed-in", when, code=code)


def test_the_best_attempt_counts_after_lateness(lab):
    told = threeloops(lab.root, "class", "init", "roster.csv", "--attempts", "best")
    assert "Of several attempts the best counts." in told
    hand_in(lab, "2030-01-31 12:00", mean=WRONG)
    told = threeloops(lab.root, "class", "grade", "90", "--sandbox", SANDBOX)
    assert "ada: attempt 2 of 2 counts (60, 100 points after lateness)" in told
    hand_in(lab, "2030-02-02 12:00", mean="# late\ndef mean(values):\n    return sum(values) / len(values)\n")
    told = threeloops(lab.root, "class", "grade", "90", "--sandbox", SANDBOX)
    assert "ada: attempt 2 of 3 counts (60, 100, " in told
    assert scores(lab)["ada"] == 100.0
    assert "new or changed: 0" in threeloops(lab.root, "class", "collect", "90", "--from", "download")
    assert scores(lab)["ada"] == 100.0


def test_the_last_of_the_first_attempts_counts(lab):
    threeloops(lab.root, "class", "init", "roster.csv", "--attempts", "first 2")
    hand_in(lab, "2030-02-01 12:00", mean=WRONG)
    told = hand_in(lab, "2030-02-02 12:00", code=1, mean="# another\n" + WRONG)
    assert "not collected: ada: 2 attempts are there and the first 2 count" in told
    threeloops(lab.root, "class", "grade", "90", "--sandbox", SANDBOX)
    assert scores(lab)["ada"] == 54.0
    assert "expected last, best, first, or first N" in threeloops(
        lab.root, "class", "init", "roster.csv", "--attempts", "worst", code=2
    )


def test_who_handed_in_a_file_of_which_nothing_can_be_collected_is_not_missing(lab):
    """Eve uploaded a PDF. Ada did, too, after a notebook that counts."""
    for student in ("ada", "eve"):
        (lab.root / "download" / student).mkdir(parents=True)
        (lab.root / "download" / student / "homework.pdf").write_bytes(b"%PDF")
    told = threeloops(lab.root, "class", "collect", "90", "--from", "download", code=1)
    reason = "not collected: eve/homework.pdf: it is neither a notebook nor a zip file"
    assert f"ungraded: eve: {reason}" in told
    told = threeloops(lab.root, "class", "check", "90")
    assert "90_toy: 4 on the roster = 3 graded + 1 ungraded + 0 missing" in told and f"ungraded: eve: {reason}" in told
    assert "ada: a later file was not collected, so an earlier one counts: ada/homework.pdf" in told
    assert scores(lab)["eve"] is None and scores(lab)["ada"] == 100.0
    threeloops(lab.root, "class", "feedback", "90")
    assert reason in (lab.root / "feedback/eve" / lab.slug / f"{lab.slug}.html").read_text()
    (lab.root / "groups.csv").write_text("group,student\nA,bob\nA,eve\n")
    threeloops(lab.root, "class", "groups", "groups.csv")
    assert scores(lab)["eve"] == 90.0, "bob's, which counts for the group"
    (lab.root / "groups.csv").write_text("group,student\n")
    threeloops(lab.root, "class", "groups", "groups.csv")
    nbformat.write(lab.master(), lab.root / "download/eve/homework.ipynb")
    told = threeloops(
        lab.root, "class", "collect", "90", "--from", "download", "--handed-in", "2030-01-31 23:30", code=1
    )
    assert "ungraded: eve: not graded yet" in told, "and ada's PDF is still there"
    assert (lab.root / "submitted/eve" / lab.slug / "timestamp.txt").read_text() == "2030-01-31 22:30:00 UTC"


def test_a_replaced_submission_is_kept_whatever_the_rule(lab):
    hand_in(lab, "2030-01-31 12:00", mean=WRONG)
    threeloops(lab.root, "class", "grade", "90", "--sandbox", SANDBOX)
    assert scores(lab)["ada"] == 60.0
    threeloops(lab.root, "class", "init", "roster.csv", "--attempts", "best")
    threeloops(lab.root, "class", "grade", "90", "--sandbox", SANDBOX)
    assert scores(lab)["ada"] == 100.0


STUDENTS = ("ada", "bob", "cyd", "eve")


@given(
    policy=st.builds(LatePolicy, st.sampled_from([0, 10, 60]), slip_days=st.integers(0, 3)),
    extended=st.lists(
        st.sampled_from([f"{student} {hours}" for student in STUDENTS for hours in (1, 24, 90)]), max_size=3
    ),
    grouped=st.lists(st.sampled_from(STUDENTS), max_size=4, unique=True),
    dropped=st.sets(st.sampled_from(STUDENTS), max_size=2),
    points=st.dictionaries(st.sampled_from(STUDENTS[:3]), st.floats(0, 20), max_size=2),
    ungraded=st.sets(st.sampled_from(STUDENTS[:3]), max_size=2),
)
@settings(max_examples=30)
def test_every_student_of_a_random_class_is_accounted_for(graded, policy, extended, grouped, dropped, points, ungraded):
    """The roster is graded + ungraded + missing; no score is below 0 or above what was earned; copies agree."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(graded.root, Path(folder, "course"), symlinks=True)
        lab = type(graded)(graded.slug, Path(folder, "course"))
        root = lab.root
        register.save(replace(register.load(root), late=policy), root)
        extensions = [Extension(row.split()[0], lab.slug, hours=float(row.split()[1])) for row in extended]
        save_extensions(extensions_path(root), merged([], extensions))
        save_groups(groups_path(root), [Member("A", student) for student in grouped])
        students = [replace(s, dropped="gone" * (s.id in dropped)) for s in saved_roster(root / "class/roster.json")]
        for student in ungraded:
            os.utime(root / "submitted" / student / lab.slug / f"{lab.slug}.ipynb", (4e9, 4e9))
        for student, value in points.items():
            give(lab, student, value)
        with gradebook(root) as book:
            rows, strangers = class_scores(book, lab, students)
            raw = {s.student_id: s.score for s in book.assignment_submissions(lab.slug)}
            penalties = {s.student_id: s.late_submission_penalty or 0.0 for s in book.assignment_submissions(lab.slug)}
        counts = {
            name: sum(row.status == name for row in rows) for name in ("graded", "ungraded", "missing", "dropped")
        }
        assert sum(counts.values()) == len(STUDENTS) and counts["dropped"] == len(dropped) and strangers == []
        assert f"{4 - len(dropped)} on the roster = {counts['graded']} graded" in account(lab, rows, strangers)
        for row in rows:
            if row.status == "graded":
                assert 0.0 <= row.score <= raw[row.hand_in.student] and row.penalty >= 0.0
                assert row.score == pytest.approx(raw[row.hand_in.student] - row.penalty)
                if row.hand_in.student == row.student.id:
                    assert penalties[row.student.id] == pytest.approx(row.penalty)
            else:
                assert row.score == (0.0 if row.status == "missing" else None)


def test_a_refused_file_that_does_not_count_is_not_a_failure(lab):
    """bob's group handed in cyd's notebook later. nbgrader cannot grade bob's, and everybody's score is right."""
    (lab.root / "groups.csv").write_text("group,student\nA,bob\nA,cyd\n")
    threeloops(lab.root, "class", "groups", "groups.csv")
    notebook = lab.root / "submitted/bob" / lab.slug / f"{lab.slug}.ipynb"
    notebook.write_bytes(notebook.read_bytes()[:-200])
    told = threeloops(lab.root, "class", "grade", "90", "--again", "--sandbox", SANDBOX, code=1)
    assert "4 on the roster = 3 graded + 0 ungraded + 1 missing" in told and "cyd, whose hand-in counts" in told
    assert scores(lab)["bob"] == scores(lab)["cyd"] == 70.0
