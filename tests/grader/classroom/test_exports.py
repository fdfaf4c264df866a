"""Rosters and downloads in the shape that platforms export by default: nobody is lost, and nothing is said twice."""

import io
import json
import zipfile
from types import SimpleNamespace

import pytest
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.handout.downloads import read_download
from threeloops_grader.classroom.handout.owners import Folder, gradescope_folders
from threeloops_grader.classroom.register.roster import Student, read_roster

CANVAS = "Student,ID,SIS User ID,SIS Login ID,Section,HW (1)\n"
POSSIBLE = "    Points Possible,,,,,10.00\n"
ADA = '"Lovelace, Ada",7,s7,ada,A,9\n'
ROSTERS = {
    "Canvas with manual posting": (CANVAS + ",,,,,Manual Posting\n" + POSSIBLE + ADA, ["ada"]),
    "Canvas with its test student": (CANVAS + POSSIBLE + ADA + '"Student, Test",15,,,A,\n', ["ada"]),
    "Canvas with a hashed test student": (CANVAS + POSSIBLE + ADA + '"Student, Test",15,,da39a3ee5e,A,\n', ["ada"]),
    "Canvas without a login column": (
        'Student,ID,SIS User ID,Section\n    Points Possible,,,\n"Lovelace, Ada",7,s7,A\n', ["s7"],
    ),
    "Canvas with cells too many": (CANVAS + POSSIBLE + ADA.replace("\n", ",,\n"), ["ada"]),
    "Canvas with semicolons in an assignment": (CANVAS.replace("HW (1)", '"a; b; c; d; e; f; g"') + ADA, ["ada"]),
    "Canvas with a line break in an assignment": (CANVAS.replace("HW (1)", '"HW\n1"') + POSSIBLE + ADA, ["ada"]),
    "Gradescope where some have no SID": (
        "First Name,Last Name,SID,Email,Sections\nAda,Lovelace,31,a@u.edu,\nAl,Turing,,al@u.edu,\n", ["31", "al@u.edu"],
    ),
    "Gradescope with staff": (
        "First Name,Last Name,Email,SID,Role,Sections\nAda,L,a@u,31,Student,\nPro,F,p@u,,Instructor,\n", ["31"],
    ),
    "Moodle's grades": (
        '"First name",Surname,"ID number","Email address","HW (Real)"\nAda,Lovelace,20001,a@u.edu,5\n', ["20001"],
    ),
    "Moodle's grades, where nobody has an ID number": (
        '"First name",Surname,"ID number","Email address"\nAda,Lovelace,,a@u.edu\n', ["a@u.edu"],
    ),
    "Moodle's participants": ('\ufeff"First name","Last name","Email address",Groups\nAda,L,a@u.edu,G\n', ["a@u.edu"]),
    "Moodle in German": ("\ufeffVorname,Nachname,ID-Nummer,E-Mail-Adresse\nAda,L,20001,a@u.de\n", ["20001"]),
    "Moodle's worksheet": (
        'Identifier,"Full name","ID number","Email address",Status,Grade\n"Participant 99","Ada L",,a@u.edu,,\n',
        ["a@u.edu"],
    ),
    "Blackboard": ('"Last Name","First Name","Username","Student ID"\n"L","Ada","ada","M1"\n', ["ada"]),
    "Blackboard in UTF-16": (
        '\ufeff"Last Name"\t"First Name"\t"Username"\t"Student ID"\nL\tAda\tada\tM1\n'.encode("utf-16-le"), ["ada"],
    ),
    "Brightspace": ("OrgDefinedId,Username,Last Name,First Name,Email\n#4,#ada,L,Ada,a@u\n", ["ada"]),
    "Google Classroom": ("Last Name,First Name,Email Address,HW\nL,Ada,a@u.edu,8\n", ["a@u.edu"]),
    "GitHub Classroom": ('"identifier","github_username","github_id","name"\n"ada","octo","5",""\n', ["ada"]),
    "Excel's separator line": ("sep=;\nstudent_id;email\nada;a@u\n", ["ada"]),
    "Excel's numbers": ("student_id,first_name\n123.0,Ada\n00123,Bob\n", ["123", "00123"]),
    "a title above the heading": ("Class list,,\nstudent_id,first_name,last_name\nada,Ada,L\n", ["ada"]),
    "a total at the end": ("student_id,first_name\nada,Ada\nTotal: 1,\n", ["ada"]),
}  # fmt: skip


@pytest.mark.parametrize("export", ROSTERS)
def test_a_default_export_is_a_roster(tmp_path, export):
    text, ids = ROSTERS[export]
    (tmp_path / "roster.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    found = read_roster(tmp_path / "roster.csv")
    assert [student.id for student in found] == ids
    assert not found.left_out


def test_a_student_in_two_sections_is_one(tmp_path):
    path = tmp_path / "roster.csv"
    for sections in ("A,B", "A and B"):
        rows = [ADA.replace(",A,", f",{section},") for section in sections.split(",")]
        path.write_text(CANVAS + POSSIBLE + "".join(rows))
        assert [(student.id, student.section) for student in read_roster(path)] == [("ada", "A and B")]


def test_a_row_that_fits_nobody_is_named_and_the_class_is_kept(tmp_path):
    path = tmp_path / "roster.csv"
    path.write_text("student_id,email\nada,a@u\na+b@u,b@u\n,\n")
    found = read_roster(path)
    assert [student.id for student in found] == ["ada"] and found.notes == []
    assert len(found.left_out) == 1 and found.left_out[0].startswith("line 3: the id 'a+b@u' cannot be a student's")


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"PK\x03\x04" + bytes(99), "workbook of Excel"), (b"<!DOCTYPE html><html>a,b</html>", "web page")],
)
def test_what_is_no_csv_is_called_by_its_name(tmp_path, content, said):
    (tmp_path / "roster.csv").write_bytes(content)
    with pytest.raises(LabError, match=said):
        read_roster(tmp_path / "roster.csv")


LAB = SimpleNamespace(slug="01_roofline", number=1)
CLASS = [
    Student("ada", "Ada", "Lovelace", "a@u.edu", canvas_id="7"),
    Student("bob", "Bob", "Unger", moodle_id="99"),
]


def book(tag: str) -> bytes:
    return json.dumps({"cells": [], "metadata": {"tag": tag}}).encode()


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo()
            info.filename = name  # as it is, backslashes included
            archive.writestr(info, content)
    return out.getvalue()


RIGHT, WRONG = book("right"), book("wrong")
INNER = zipped({"01_roofline.ipynb": RIGHT})
YAML = b":submission_12:\n  :submitters:\n  - :name: Ada Lovelace\n    :sid: '9'\n    :email: a@u.edu\n"
DOWNLOADS = {
    "a copy beside the notebook": {"ada/01_roofline-Copy1.ipynb": WRONG, "ada/01_roofline.ipynb": RIGHT},
    "a checkpoint": {"ada/.ipynb_checkpoints/01_roofline-checkpoint.ipynb": WRONG, "ada/01_roofline.ipynb": RIGHT},
    "a shadow of macOS": {"ada/._01_roofline.ipynb": b"\0\5\x16\7", "ada/01_roofline.ipynb": RIGHT},
    "another lab": {"lovelaceada_7_1_00_start_here.ipynb": WRONG, "lovelaceada_7_2_01_roofline.ipynb": RIGHT},
    "the dives": {"ada/01_roofline_dives.ipynb": WRONG, "ada/01_roofline.ipynb": RIGHT},
    "the copy that was handed out": {
        "ada/labs/01_roofline/01_roofline.ipynb": WRONG, "ada/mine/01_roofline/01_roofline.ipynb": RIGHT,
    },
    "capitals": {"lovelaceada_7_1_01_roofline.ZIP": INNER},
    "a renamed ending": {"lovelaceada_7_1_01_roofline.ipynb.txt": RIGHT},
    "PowerShell": {"ada.zip": zipped({"01_roofline\\01_roofline.ipynb": RIGHT})},
    "a browser's copy": {"ada.zip": zipped({"01_roofline (1).ipynb": RIGHT})},
    "a single renamed notebook": {"ada.zip": zipped({"My roofline.ipynb": RIGHT})},
    "an email address": {"a@u.edu/01_roofline.ipynb": RIGHT},
    "Gradescope": {
        "assignment_1_export/submission_12/01_roofline.ipynb": RIGHT,
        "assignment_1_export/submission_metadata.yml": YAML,
    },
    "Blackboard": {"HW_ada_attempt_2030-01-06-22-31-00_01_roofline.zip": INNER,
                   "HW_ada_attempt_2030-01-06-22-31-00.txt": b"Name: Ada"},
    "Brightspace": {"15-35 - Ada Lovelace - May 18, 2030 1224 PM/01_roofline.zip": INNER, "index.html": b"x"},
    "GitHub Classroom": {"roofline-ada/01_roofline.ipynb": RIGHT},
}  # fmt: skip


@pytest.mark.parametrize("download", DOWNLOADS)
def test_the_labs_own_notebook_is_collected(tmp_path, download):
    (tmp_path / "all.zip").write_bytes(zipped(DOWNLOADS[download]))
    found = read_download(tmp_path / "all.zip", LAB, CLASS)
    assert (found.notebooks, found.faults) == ({"ada": RIGHT}, [])


def test_a_blind_download_is_matched_by_the_worksheets_numbers(tmp_path):
    (tmp_path / "all.zip").write_bytes(zipped({"Participant_99_assignsubmission_file_/01_roofline.zip": INNER}))
    assert read_download(tmp_path / "all.zip", LAB, CLASS).notebooks == {"bob": RIGHT}


FAULTS = {
    "two notebooks": ({"ada/a.ipynb": RIGHT, "ada/b.ipynb": WRONG}, "none was stored: ada/a.ipynb, ada/b.ipynb"),
    "only another lab": ({"ada/00_start_here.ipynb": WRONG}, "no notebook of 01_roofline: ada/00_start_here.ipynb"),
    "a zip in a zip": ({"ada.zip": zipped({"inner.zip": INNER})}, "ada.zip: the zip file holds no notebook"),
    "another archive": ({"ada/01_roofline.rar": b"x"}, "ada/01_roofline.rar: it is neither a notebook nor a zip"),
    "a text": ({"ada/01_roofline.ipynb.txt": b"no json"}, "it is no notebook"),
    "a stranger": ({"eve/01_roofline.ipynb": RIGHT}, "nobody on the roster fits"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_cannot_be_collected_is_one_line(tmp_path, fault):
    files, said = FAULTS[fault]
    (tmp_path / "all.zip").write_bytes(zipped(files))
    found = read_download(tmp_path / "all.zip", LAB, CLASS)
    assert found.notebooks == {} and len(found.faults) == 1
    assert said in found.faults[0]


def test_equal_copies_are_one_and_other_files_beside_a_notebook_are_nobodys_business(tmp_path):
    files = {"ada/a/01_roofline.ipynb": RIGHT, "ada/b/01_roofline.ipynb": RIGHT, "ada/notes.pdf": b"%PDF"}
    (tmp_path / "all.zip").write_bytes(zipped(files))
    found = read_download(tmp_path / "all.zip", LAB, CLASS)
    assert (found.notebooks, found.faults) == ({"ada": RIGHT}, [])


def test_gradescopes_metadata_names_all_submitters_of_a_folder():
    text = ":submission_1:\n  :submitters:\n  - :name: A\n    :sid: s1\n  - :sid: s2\n:submission_2:\n  :email: b@u\n"
    assert gradescope_folders(text) == {
        "submission_1": Folder((("s1",), ("s2",))), "submission_2": Folder((("b@u",),)),
    }  # fmt: skip
