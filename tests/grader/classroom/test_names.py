"""Names of real people, as folders, in every export, on both routes; and the names that are nobody's."""

import csv
import io
import json
import os
import shutil
import sys
import unicodedata
from pathlib import Path

import pytest
from grading import QUICK, REPOSITORY, fresh_course, nbgrader, sandbox_words, submission
from nbgrader.api import Gradebook
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.gradebook import feed
from threeloops_grader.course.grade_command import _file_names
from threeloops_grader.grading import records
from threeloops_grader.grading.grade import Options
from threeloops_grader.grading.records import ClassReport, Record, gradescope, to_csv
from threeloops_grader.pages.spreadsheet import to_csv as cells
from threeloops_grader.release.release import release
from threeloops_grader.submissions.folder import BadSubmission, is_student, require_student, student_name
from threeloops_grader.submissions.reading import find
from threeloops_grader.worklist.grade_class import grade_class
from toy_course import make_course

DECOMPOSED = unicodedata.normalize("NFD", "José")
PEOPLE = [
    "O'Brien",
    "Smith, John",
    DECOMPOSED,
    "हिन्दी",
    "علی\u200cرضا",
    "李小龍",
    "Ægir Þór",
    "-",
    "-anna",
    "=1+1",
    "+49",
    "@home",
    "$(id)",
    "a;b&c",
    "Ben",
    "ben",
    "{x}",
    "[ab]",
    "100%",
    "<b>",
    'the "Dude"',
    "two  spaces",
    "ends.",
    "x" * 100,
]
CLASS = PEOPLE + [f"student{n}" for n in range(3)]
NOBODY = ["x..y", "a\\b", "..x", "\x1b[2J", "x" * 101, "line\nbreak", " ", "\u202egnp"]


def hand_in(lab, folder, names):
    for name in names:
        path = folder / name / lab.slug / f"{lab.slug}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(submission(lab)))
    return folder


def unquoted(name):
    return name[1:] if name.startswith("'") else name


def test_a_class_with_odd_names_is_graded_whole_on_both_routes(tmp_path):
    with fresh_course(tmp_path) as lab:
        shutil.copy(REPOSITORY / "nbgrader_config.py", lab.root)
        release([lab])
        folder = hand_in(lab, lab.root / "submitted", CLASS + NOBODY[:2])
        report = grade_class(folder, lab, Options("none", limits=QUICK))
        full = {r.student for r in report.records if r.score == 100.0}
        assert full == {unicodedata.normalize("NFC", name) for name in CLASS}
        assert {r.student for r in report.records if r.status == "failed"} == {"x..y", "a\\b"}

        assert nbgrader(lab.root, "generate_assignment", lab.slug, "--force").returncode == 0
        done = nbgrader(lab.root, "autograde", lab.slug, *sandbox_words())
        assert done.returncode == 1, done.stderr
        assert done.stderr.count("cannot be a student's") >= 2
        scores = exported(lab)
        assert {name for name, row in scores.items() if float(row["score"]) == 100.0} == set(CLASS)
        assert scores.keys() == set(CLASS)

        for record in report.records:
            for test in record.tests:
                test.score = test.max_score / 2
        assert feed(report, lab, f"sqlite:///{lab.root / 'gradebook.db'}") == len(CLASS)
        scores = exported(lab)
        assert {name: float(row["score"]) for name, row in scores.items()} == dict.fromkeys(CLASS, 50.0)


def exported(lab):
    done = nbgrader(lab.root, "export", "--to", "grades.csv")
    assert done.returncode == 0, done.stderr
    text = (lab.root / "grades.csv").read_text(encoding="utf-8")
    assert not any(line.split(",")[3].strip('"').startswith(("=", "+", "@", "-a")) for line in text.splitlines())
    return {unquoted(row["student_id"]): row for row in csv.DictReader(text.splitlines())}


@pytest.mark.parametrize("name", PEOPLE)
def test_a_name_of_a_person_is_taken_composed(name):
    require_student(student_name(name))
    assert student_name(name) == unicodedata.normalize("NFC", name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".git", "a/b", "../x", "\udcff", "x" * 90 + "\U0001f600" * 50, *NOBODY]
)
def test_a_name_that_leads_elsewhere_or_cannot_be_shown_is_nobodys(name):
    assert not is_student(student_name(name))
    with pytest.raises(BadSubmission, match="cannot be a student's: it"):
        require_student(student_name(name))


@pytest.mark.parametrize("other", ["José", "Jose\u0301\u200c"])
def test_two_folders_that_look_the_same_are_both_named(tmp_path, other):
    lab = make_course(tmp_path / "course")
    folder = hand_in(lab, tmp_path / "submitted", [DECOMPOSED, other])
    with pytest.raises(LabError, match=r"look the same, 'Jos.*' and 'Jos.*'; rename one"):
        find(folder, lab)


def a_record(student, score=40.0, status="graded"):
    tests = [records.Test("mean_test", score, 40.0, ""), records.Test("rescale_test", 0.0, 60.0, "")]
    return Record(student, score, 100.0, status, 1.0, "cpu", "complete", [], tests)


def test_every_name_reads_back_from_the_table():
    report = ClassReport("90_toy", "none", [a_record(name) for name in PEOPLE])
    rows = list(csv.DictReader(to_csv(report).splitlines()))
    assert [unquoted(row["student"]) for row in rows] == PEOPLE
    assert [row["student"] for row in rows if row["student"].startswith("'")] == ["'-anna", "'=1+1", "'+49", "'@home"]
    assert {row["sandbox"] for row in rows} == {"none"}


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", " =1", "'=1", "''-1", "\uff1d1"])
def test_a_formula_is_text_in_a_spreadsheet(text):
    ((read,),) = csv.reader(io.StringIO(cells([[text]]), newline=""))
    assert read == f"'{text}"


@pytest.mark.parametrize("value", ["-", "O'Brien", "Smith, John", 'a "b"', "x=1", "'quoted'", "", -1.5])
def test_what_is_no_formula_is_left_as_it_is(value):
    ((read, _),) = csv.reader([cells([[value, 1]])])
    assert read == str(value)


def test_files_of_two_students_never_collide():
    students = [*PEOPLE, "a_b", "a'b", "a,b", "A,B", "a,b-2", "STRASSE", "straße", "字" * 100, "字" * 99 + "x"]
    names = _file_names(students)
    assert len({unicodedata.normalize("NFD", name).casefold() for name in names}) == len(students)
    assert all(name and "/" not in name and len(name.encode()) <= 210 for name in names)
    assert names[:4] == ["O_Brien", "Smith__John", DECOMPOSED, "हिन्दी"]


def test_a_gradebook_that_knows_nobody_gets_the_composed_name_and_no_refused_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    lab = make_course(tmp_path)
    database = f"sqlite:///{tmp_path / 'gradebook.db'}"
    with Gradebook(database) as gradebook:
        gradebook.add_assignment(lab.slug)
        gradebook.add_notebook(lab.slug, lab.slug)
        for test, points in (("mean_test", 40), ("rescale_test", 60)):
            gradebook.add_grade_cell(test, lab.slug, lab.slug, max_score=points, cell_type="code")
    report = ClassReport(lab.slug, "none", [a_record("José"), *(a_record(student_name(n), 0.0) for n in NOBODY)])
    assert feed(report, lab, database) == 1
    with Gradebook(database) as gradebook:
        assert [s.id for s in gradebook.students] == ["José"]


def test_every_export_says_that_nothing_was_isolated():
    report = ClassReport("90_toy", "none", [a_record("ada")])
    assert "without isolation" in report.to_dict()["warning"]
    assert gradescope(report.records[0], report.sandbox)["output"].startswith("graded without isolation")
    confined = ClassReport("90_toy", "bwrap", [a_record("ada")])
    assert "warning" not in confined.to_dict()
    assert "isolation" not in gradescope(confined.records[0], confined.sandbox)["output"]
