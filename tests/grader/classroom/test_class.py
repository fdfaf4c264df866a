"""`threeloops class …` from the roster to the exports: real nbgrader commands, a real exchange, five students."""

import csv
import io
import os
import pwd
import shutil
import subprocess

import nbformat
import pytest
from grading import REPOSITORY
from nbgrader.api import Gradebook
from threeloops_grader.authoring.answers import wrong_answers
from threeloops_grader.classroom.enrolment import gradebook
from threeloops_grader.classroom.register.roster import saved_roster
from threeloops_grader.classroom.register.settings import load
from threeloops_grader.classroom.results.report import class_csv, class_page
from threeloops_grader.classroom.results.scores import class_scores
from threeloops_grader.classroom.results.tables import FORMATS
from threeloops_grader.classroom.results.wrong_answers import common_mistakes, signatures
from threeloops_grader.course.course import submissions
from threeloops_grader.sandbox import bwrap
from toy_class import SANDBOX, make_class_course, threeloops

ME = pwd.getpwuid(os.getuid()).pw_name
ROSTER = f"""student_id;first_name;last_name;email
{ME};=HYPERLINK("x");@Slash/Name;me@example.org
early;Ada;"Lovelace; Countess";-1@example.org
late;Zoë;O'Neil;
wrong;Bob;B;
missing;Eve;E;
"""
DUE, IN_TIME, LATE = "90=2030-01-31 23:59", "2030-01-31 23:58:59 +0100", "2030-02-02 00:00:00 +0100"
"""Berlin's time; nbgrader alone would read +0100 as an offset of 100 seconds, and call both of them late."""


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    lab = make_class_course(tmp_path_factory.mktemp("course"))
    root = lab.root
    (root / "roster.csv").write_text("\ufeff" + ROSTER)
    late = ("--late-percent", "10", "--grace-minutes", "15", "--reflection", "5")
    threeloops(root, "class", "init", "roster.csv", "--due", DUE, "--timezone", "Europe/Berlin", *late)
    threeloops(root, "class", "release", "90")
    threeloops(root, "start", "90")
    threeloops(root, "submit", "90", "--exchange")
    inbound = root / "exchange/three_loops/inbound"
    mine = next(inbound.iterdir())
    reference, _ = submissions(lab)["reference"]
    mistaken = nbformat.from_dict(reference)
    answer = next(answer for answer in wrong_answers(lab) if answer.exercise == "mean")
    next(cell for cell in mistaken.cells if cell.id == "mean").source = answer.text
    for student, stamp, notebook in (
        ("early", IN_TIME, reference),
        ("late", LATE, reference),
        ("wrong", "2030-01-31 20:00:00 UTC", mistaken),
    ):
        folder = inbound / f"{student}+{lab.slug}+{stamp}+secret"
        shutil.copytree(mine, folder)
        nbformat.write(notebook, folder / f"{lab.slug}.ipynb")
        (folder / "submission_secret.txt").write_text(f"known to {student} alone")
    threeloops(root, "class", "collect", "90")
    threeloops(root, "class", "grade", "90", "--sandbox", SANDBOX)
    said = threeloops(root, "class", "feedback", "90")
    return lab, answer, said


@pytest.fixture(scope="module")
def rows(course):
    lab, _, _ = course
    with gradebook(lab.root) as book:
        found, strangers = class_scores(book, lab, saved_roster(lab.root / "class/roster.json"))
    assert strangers == []
    return {row.student.id: row for row in found}


def test_late_work_loses_what_the_policy_says_and_no_more(rows):
    assert {name: row.score for name, row in rows.items()} == {
        ME: 0.0,
        "early": 100.0,
        "late": 90.0,  # one day after the grace period of a quarter of an hour
        "wrong": 60.0,
        "missing": 0.0,
    }
    assert (rows["early"].seconds_late, rows["late"].seconds_late) == (0, 24 * 3600 + 60)


def test_the_reflection_has_manual_points_beside_the_hundred(course, rows):
    lab, _, _ = course
    assert rows["early"].max_score == 105.0
    with Gradebook(f"sqlite:///{lab.root}/gradebook.db", "three_loops") as book:
        grade = book.find_grade("reflection", lab.slug, lab.slug, "early")
        assert (grade.max_score, grade.auto_score, grade.needs_manual_grade) == (5.0, None, True)


def test_manual_points_of_the_reflection_come_on_top_and_outlive_another_grading(course):
    """Given as formgrader gives them: its page writes these two fields of the entry."""
    lab, _, _ = course
    students = saved_roster(lab.root / "class/roster.json")
    with gradebook(lab.root) as book:
        grade = book.find_grade("reflection", lab.slug, lab.slug, "wrong")
        grade.manual_score, grade.needs_manual_grade = 4.0, False
        book.db.commit()
    threeloops(lab.root, "class", "grade", "90", "--sandbox", SANDBOX)
    with gradebook(lab.root) as book:
        assert not book.find_submission(lab.slug, "wrong").needs_manual_grade
        found, _ = class_scores(book, lab, students)
    row = next(row for row in found if row.student.id == "wrong")
    assert (row.score, row.max_score) == (64.0, 105.0)
    names, *_, given = FORMATS["moodle"](lab, [row], True)
    assert str(dict(zip(names, given, strict=True))["90_toy reflection"]) == "4"


@pytest.mark.parametrize("name", FORMATS)
def test_no_table_holds_a_formula_and_all_have_a_column_per_exercise(course, rows, name):
    from threeloops_grader.pages.spreadsheet import to_csv

    lab, _, _ = course
    table = list(csv.reader(io.StringIO(to_csv(FORMATS[name](lab, list(rows.values()), True)))))
    assert len({len(row) for row in table}) == 1
    assert not [cell for row in table for cell in row if cell[:1] in ("=", "+", "-", "@")]
    assert sum("mean" in cell for cell in table[0]) == sum("rescale" in cell for cell in table[0]) == 1
    assert len(table) == 1 + len(rows) + (name == "canvas")
    total = table[0].index(lab.slug)
    late = next(row for row in table if "O'Neil" in "".join(row))
    assert late[total] == "90"


def test_a_known_wrong_answer_is_recognised(course, rows):
    lab, answer, _ = course
    kept = lab.root / "class/known.json"
    known = signatures(lab, "none" if bwrap.why_not() else "bwrap", kept)
    assert signatures(lab, "none" if bwrap.why_not() else "bwrap", kept) == known, "read back, not graded again"
    mistakes = common_mistakes(lab, list(rows.values()), known)
    name = answer.name.partition("__")[2].replace("_", " ")
    assert [(m.exercise, m.students, name in m.known_as) for m in mistakes if m.exercise == "mean"] == [
        ("mean", 1, True)
    ]
    page, table = class_page(lab, list(rows.values()), mistakes), class_csv(lab, list(rows.values()), mistakes)
    assert name in page and name in table
    assert "<script" not in page and "O'Neil" not in page


def test_feedback_is_small_and_goes_back_through_the_exchange(course):
    lab, _, said = course
    assert "4 pages" in said
    page = (lab.root / "feedback/wrong" / lab.slug / f"{lab.slug}.html").read_text()
    assert len(page) < 150_000
    assert "<details><summary>code</summary>" in page and 'href="#mean_test"' in page
    handed_back = list((lab.root / "exchange/three_loops/feedback").glob("*.html"))
    assert len(handed_back) == 4


def test_another_init_changes_what_it_names_and_keeps_the_rest(course):
    root = course[0].root
    before = load(root)
    said = threeloops(root, "class", "init", "roster.csv", "--due", DUE, "--timezone", "Europe/Berlin")
    assert load(root) == before and "Late work loses 10% per day begun" in said


def test_a_repaired_lab_is_released_again_and_manual_points_stay(course):
    """The reflection's points are in the gradebook alone, and nbgrader compares its cells with the notebook's."""
    lab, _, _ = course
    source = lab.source
    before = source.read_text()
    source.write_text(before.replace("divide by the peak", "divide by the largest magnitude"))
    try:
        threeloops(lab.root, "class", "release", "90")
    finally:
        source.write_text(before)
    assert "divide by the largest magnitude" in lab.released.read_text()
    with gradebook(lab.root) as book:
        assert book.find_grade_cell("reflection", lab.slug, lab.slug).max_score == 5.0
    threeloops(lab.root, "class", "release", "90")


def test_a_release_that_fails_leaves_the_one_before(course):
    """nbgrader refuses to remove a part that has submissions."""
    lab, _, _ = course
    texts = {path: path.read_text() for path in (lab.source, lab.folder / "answers.md")}
    files = {path: path.read_bytes() for path in lab.released.parent.rglob("*") if path.is_file()}
    for path, text in texts.items():
        path.write_text(text.replace("rescale_test_zeros", "rescale_test_nothing").replace(": zeros", ": nothing"))
    try:
        with pytest.raises(AssertionError, match="Cannot add or remove cells"):
            threeloops(lab.root, "class", "release", "90")
    finally:
        for path, text in texts.items():
            path.write_text(text)
    assert {path: path.read_bytes() for path in lab.released.parent.rglob("*") if path.is_file()} == files
    assert not list(lab.released.parents[1].glob(".*"))


def test_without_a_roster_a_class_is_graded_and_there_is_no_account(course):
    """As for an instructor who uses nbgrader's own commands up to here."""
    lab, _, _ = course
    roster = lab.root / "class/roster.json"
    roster.rename(lab.root / "aside.json")
    try:
        said = threeloops(lab.root, "class", "grade", "90", "--sandbox", SANDBOX)
        assert "no account: no roster at" in said
        assert "no roster at" in threeloops(lab.root, "class", "check", "90", code=2)
    finally:
        (lab.root / "aside.json").rename(roster)


def test_a_failure_that_is_nobodys_submission_is_not_taken_for_a_refused_one(course):
    """nbgrader exits with 1 for both. Here its configuration cannot be read."""
    lab, _, _ = course
    config = lab.root / "nbgrader_config.py"
    before = config.read_text()
    config.write_text("import sys\nsys.exit('broken')\n")
    try:
        said = threeloops(lab.root, "class", "grade", "90", code=2)
    finally:
        config.write_text(before)
    assert "`nbgrader autograde 90_toy" in said and "failed; what it said stands above" in said


def test_a_refused_submission_of_somebody_who_is_not_on_the_roster_is_named_and_no_failure(course):
    """Without a roster, everybody is such a person."""
    lab, _, _ = course
    folder = lab.root / "submitted" / "nobody" / lab.slug
    folder.mkdir(parents=True)
    (folder / f"{lab.slug}.ipynb").write_text("{")
    words = ("class", "grade", "90", "--sandbox", SANDBOX)
    roster = lab.root / "class/roster.json"
    try:
        said = threeloops(lab.root, *words, code=1)
        assert "not on the roster, and not graded: nobody: refused: the file is not JSON" in said
        roster.rename(lab.root / "aside.json")
        assert "nobody: the file is not JSON" in threeloops(lab.root, *words, code=1)
    finally:
        if not roster.exists():
            (lab.root / "aside.json").rename(roster)
        shutil.rmtree(folder.parent)


def test_a_refused_submission_is_named_has_no_score_and_keeps_no_older_one(course):
    """`missing` hands in a cut-off file, and `early` a newer one that is no notebook: neither has a score."""
    lab, _, _ = course
    whole = (lab.root / "submitted/early" / lab.slug / f"{lab.slug}.ipynb").read_bytes()
    for student, content in (("missing", whole[:-99]), ("early", b"PK")):
        (lab.root / "download" / student).mkdir(parents=True)
        (lab.root / "download" / student / f"{lab.slug}.ipynb").write_bytes(content)
    said = threeloops(lab.root, "class", "collect", "90", "--from", "download")
    account = f"{lab.slug}: 5 on the roster = 3 graded + 2 ungraded + 0 missing"
    assert account in said
    said = threeloops(lab.root, "class", "grade", "90", "--sandbox", SANDBOX, code=1)
    assert account in said and "ungraded: missing: refused: " in said and "ungraded: early: refused: " in said
    assert account in threeloops(lab.root, "class", "check", "90")
    said = threeloops(lab.root, "class", "export", "90")
    assert account in said
    table = list(csv.DictReader(io.StringIO((lab.root / f"class/{lab.slug}_gradescope.csv").read_text())))
    assert {row["SID"]: row[lab.slug] for row in table if row["SID"] in ("missing", "early")} == {
        "missing": "", "early": "",
    }  # fmt: skip
    threeloops(lab.root, "class", "feedback", "90")
    page = (lab.root / "feedback/missing" / lab.slug / f"{lab.slug}.html").read_text()
    assert "was not graded" in page and "refused: " in page


def test_git_ignores_what_a_class_leaves_behind():
    private = [f"{n}/a" for n in ("class", "submitted", "autograded", "feedback", "exchange")]
    private += ["roster.csv", "gradebook.db", "grades.csv"]
    listed = subprocess.run(
        ["git", "check-ignore", *private], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert listed.stdout.split() == private
