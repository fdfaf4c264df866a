"""Downloads that say when each submission was handed in, and groups that hand in one notebook."""

import io
import json
import shutil
import zipfile
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from pathlib import Path

import pytest
from grading import REPOSITORY
from threeloops_grader.authoring.labs import LabError, find_lab
from threeloops_grader.classroom.exchange.attempts import attempts_of
from threeloops_grader.classroom.handout.download_times import settled, worksheet_times
from threeloops_grader.classroom.handout.downloads import Download, read_download, store
from threeloops_grader.classroom.register.roster import Student

LAB = find_lab("01", REPOSITORY)
ADA = Student("ada", "Ada", "Lovelace", "a@u.edu", canvas_id="7", sis_id="9")
BOB = Student("bob", "Bob", "Stone", "b@u.edu", canvas_id="8", moodle_id="99")
NOTEBOOK = json.dumps({"cells": [], "metadata": {"threeloops": {"lab": LAB.slug}}}).encode()
FILE = f"{LAB.slug}.ipynb"
PACIFIC = timezone(timedelta(hours=-8))

GRADESCOPE = """\
:submission_12:
  :submitters:
  - :name: Ada Lovelace
    :sid: '9'
    :email: a@u.edu
  - :name: Bob Stone
    :sid:
    :email: b@u.edu
  :created_at: 2030-01-06 22:31:00.123456789 -08:00
  :score: 10.0
  :history:
  - :id: 11
    :created_at: 2030-01-05 10:00:00.000000000 -08:00
    :submitters:
    - :name: Eve
      :email: eve@u.edu
"""
WORKSHEET = """\
Identifier,"Full name","Email address",Status,Grade,"Last modified (submission)","Last modified (grade)"
"Participant 99","Bob S",,"Submitted for grading",,"Sunday, 6 January 2030, 10:31 PM",-
"Participant 98","Ada Lovelace",a@u.edu,"Submitted for grading",,"Sunday, 6 January 2030, 12:05 AM",-
"Participant 97","Eve E",e@u.edu,"No submission",,-,-
"""


def zipped(**files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def download(tmp_path, **files):
    (tmp_path / "all.zip").write_bytes(zipped(**files))
    return read_download(tmp_path / "all.zip", LAB, [ADA, BOB])


def test_all_submitters_of_a_group_get_the_notebook_with_its_time_and_it_is_said(tmp_path):
    files = {f"export/submission_12/{FILE}": NOTEBOOK, "export/submission_metadata.yml": GRADESCOPE}
    found = download(tmp_path, **files)
    assert found.notebooks == {"ada": NOTEBOOK, "bob": NOTEBOOK}
    assert found.faults == []
    assert found.notes == ["submission_12: handed in by a group, and collected for ada, bob"]
    assert found.times == dict.fromkeys(("ada", "bob"), datetime(2030, 1, 6, 22, 31, tzinfo=PACIFIC))


def test_a_member_of_a_group_who_is_not_on_the_roster_is_named_and_the_others_get_the_notebook(tmp_path):
    metadata = GRADESCOPE.replace("b@u.edu", "mallory@u.edu", 1)
    files = {f"export/submission_12/{FILE}": NOTEBOOK, "export/submission_metadata.yml": metadata}
    found = download(tmp_path, **files)
    assert found.notebooks == {"ada": NOTEBOOK}
    assert found.faults == ["submission_12: mallory@u.edu of this group matches no student on the roster, or several"]


def test_a_member_of_a_group_may_have_an_apostrophe_in_the_address(tmp_path):
    files = {f"export/submission_12/{FILE}": NOTEBOOK}
    students = [ADA, replace(BOB, email="b'o@u.edu")]
    for address in ("b'o@u.edu", "'b''o@u.edu'", '"b\'o@u.edu"'):
        metadata = GRADESCOPE.replace("b@u.edu", address)
        (tmp_path / "all.zip").write_bytes(zipped(**files, **{"export/submission_metadata.yml": metadata}))
        assert sorted(read_download(tmp_path / "all.zip", LAB, students).notebooks) == ["ada", "bob"], address


NAMES = {
    f"HW_ada_attempt_2030-01-06-22-31-07_{FILE}": datetime(2030, 1, 6, 22, 31, 7),
    f"15-35 - Ada Lovelace - January 6, 2030 1031 PM/{FILE}": datetime(2030, 1, 6, 22, 31),
    f"15-35 - Ada Lovelace - 6 janvier, 2030 2231/{FILE}": datetime(2030, 1, 6, 22, 31),
    f"15-35 - Ada Lovelace - Jan 6, 2030 1205 AM/{FILE}": datetime(2030, 1, 6, 0, 5),
    f"ada_{LAB.slug}_2030-01-06 22:31:00 UTC.zip": datetime(2030, 1, 6, 22, 31, tzinfo=UTC),
    f"15-35 - Ada Lovelace - yesterday/{FILE}": None,
    f"lovelaceada_7_1_{FILE}": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_files_and_folders_say_when(tmp_path, name):
    found = download(tmp_path, **{name: zipped(**{FILE: NOTEBOOK}) if name.endswith(".zip") else NOTEBOOK})
    assert found.notebooks == {"ada": NOTEBOOK}
    assert found.times.get("ada") == NAMES[name]


def test_canvas_says_who_is_late_and_not_how_late(tmp_path):
    found = download(tmp_path, **{f"lovelaceada_LATE_7_1_{FILE}": NOTEBOOK, f"stonebob_8_1_{FILE}": NOTEBOOK})
    assert (found.late, found.times) == ({"ada"}, {})


def test_moodles_worksheet_has_a_time_for_everybody_who_handed_in(tmp_path):
    (tmp_path / "worksheet.csv").write_text(WORKSHEET)
    assert worksheet_times(tmp_path / "worksheet.csv", [ADA, BOB]) == {
        "ada": datetime(2030, 1, 6, 0, 5), "bob": datetime(2030, 1, 6, 22, 31),
    }  # fmt: skip


def test_a_time_that_could_be_that_of_two_students_with_one_name_is_not_used(tmp_path):
    namesake = Student("ada2", "Ada", "Lovelace", "ada2@u.edu")
    table = WORKSHEET.replace("a@u.edu", "").replace("Bob S", "Ada Lovelace")
    (tmp_path / "worksheet.csv").write_text(table)
    assert worksheet_times(tmp_path / "worksheet.csv", [ADA, namesake]) == {}
    assert worksheet_times(tmp_path / "worksheet.csv", [ADA]) == {}, "two rows fit Ada"
    assert worksheet_times(tmp_path / "worksheet.csv", [replace(ADA, moodle_id="98"), BOB]) == {
        "ada": datetime(2030, 1, 6, 0, 5), "bob": datetime(2030, 1, 6, 22, 31),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("heading", "text"),
    [
        ("Zuletzt geändert (Abgabe)", "Sonntag, 6. Januar 2030, 22:31"),
        ("Dernière modification (travail remis)", "dimanche 6 janvier 2030, 22:31"),
        ("Última modificación (entrega)", "domingo, 6 de enero de 2030, 22:31"),
        ("Last modified (submission)", "Sunday, January 6, 2030, 10:31 PM"),
    ],
)
def test_a_worksheet_in_another_language(tmp_path, heading, text):
    table = f'Email address,"{heading}","{heading.partition("(")[0]}(x)"\na@u.edu,"{text}","-"\n'
    (tmp_path / "worksheet.csv").write_text(table)
    assert worksheet_times(tmp_path / "worksheet.csv", [ADA, BOB]) == {"ada": datetime(2030, 1, 6, 22, 31)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            WORKSHEET.replace("10:31 PM", "late at night"),
            "line 2: 'Sunday, 6 January 2030, late at night' is not a time",
        ),
        (WORKSHEET.replace("6 January", "36 January"), "line 2: 'Sunday, 36 January 2030, 10:31 PM' is not a time"),
        ("email\na@u.edu\n", "has no times of submissions"),
    ],
)
def test_a_worksheet_whose_times_cannot_be_read_is_refused(tmp_path, text, message):
    (tmp_path / "worksheet.csv").write_text(text)
    with pytest.raises(LabError, match=message):
        worksheet_times(tmp_path / "worksheet.csv", [ADA, BOB])


def test_a_time_without_a_zone_is_read_in_the_given_one_and_never_guessed():
    times = {"ada": datetime(2030, 7, 6, 22, 31), "bob": datetime(2030, 1, 6, 22, 31, tzinfo=PACIFIC)}
    in_berlin = settled(times, "Europe/Berlin")
    assert in_berlin.utc["ada"] == datetime(2030, 7, 6, 20, 31, tzinfo=UTC)
    assert in_berlin.notes == ["times without an offset are read as those of Europe/Berlin, for 1 submission"]
    unknown = settled(times, None)
    assert unknown.utc == {"bob": datetime(2030, 1, 7, 6, 31, tzinfo=UTC)}
    assert "(2030-07-06 22:31 for ada) and are not used; run it again with --timezone" in unknown.unread[0]


@pytest.mark.parametrize("hour", ["2030-03-31 02:30", "2030-10-27 02:30"])
def test_an_hour_that_the_clocks_skip_or_repeat_is_not_used_and_is_named(hour):
    times = settled({"ada": datetime.fromisoformat(hour), "bob": datetime(2030, 1, 6, 22, 31)}, "Europe/Berlin")
    assert list(times.utc) == ["bob"]
    assert times.unread[0].startswith(f"ada: the time of handing in '{hour}:00'")


def test_each_notebook_is_stored_with_its_own_time(tmp_path):
    files = {f"export/submission_12/{FILE}": NOTEBOOK, "export/submission_metadata.yml": GRADESCOPE}
    found = download(tmp_path, **files)
    times = settled(found.times, None)
    assert store(found, LAB, tmp_path / "submitted", None, "last", times.utc) == 2
    stamps = [tmp_path / "submitted" / name / LAB.slug / "timestamp.txt" for name in ("ada", "bob")]
    assert {stamp.read_text() for stamp in stamps} == {"2030-01-07 06:31:00 UTC"}
    assert store(found, LAB, tmp_path / "submitted", None, "last", times.utc) == 0
    assert store(found, LAB, tmp_path / "submitted", datetime(2030, 1, 8, tzinfo=UTC), "last", times.utc) == 2
    assert {stamp.read_text() for stamp in stamps} == {"2030-01-08 00:00:00 UTC"}


@pytest.mark.parametrize("at", range(7))
def test_a_command_that_is_killed_leaves_no_notebook_with_the_time_of_another(tmp_path, monkeypatch, at):
    submitted = tmp_path / "submitted"
    path = submitted / "ada" / LAB.slug / FILE
    store(Download({"ada": b"old"}), LAB, submitted, datetime(2030, 1, 1, tzinfo=UTC))
    steps = count()

    def killed(function):
        def step(*arguments, **options):
            if next(steps) == at:
                raise KeyboardInterrupt
            return function(*arguments, **options)

        return step

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        for owner, name in ((Path, "unlink"), (Path, "rename"), (shutil, "rmtree")):
            patch.setattr(owner, name, killed(getattr(owner, name)))
        store(Download({"ada": b"new"}), LAB, submitted, None)
    stamp = path.with_name("timestamp.txt")
    if path.is_file():
        assert stamp.is_file() == (path.read_bytes() == b"old")
    store(Download({"ada": b"new"}), LAB, submitted, None)
    assert path.read_bytes() == b"new" and not stamp.exists()
    assert sorted(attempt.is_timed for attempt in attempts_of(tmp_path, LAB.slug, "ada")) == [False, True]
