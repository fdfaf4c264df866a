"""Rosters as instructors have them, and due dates and lateness as an instructor means them."""

import json
import math

import pytest
from nbgrader.utils import parse_utc
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.register import settings
from threeloops_grader.classroom.register.roster import (
    Student,
    addressees,
    current,
    read_roster,
    save_roster,
    saved_roster,
    with_dropped,
)
from threeloops_grader.classroom.register.settings import LatePolicy, Settings, parse_due

OWN = "student_id,first_name,last_name,email\n"


@pytest.fixture
def roster(tmp_path):
    def read(text: str | bytes) -> list[Student]:
        path = tmp_path / "roster.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_roster(path)

    return read


def test_names_keep_whatever_they_hold(roster):
    text = OWN + 'ada,"Ada ""the first""","Lovelace, Countess",a@example.org\nbob,=1+2,@Bob/Slash,\nzoë,Zoë,Ünal,\n'
    assert roster(text) == [
        Student("ada", 'Ada "the first"', "Lovelace, Countess", "a@example.org"),
        Student("bob", "=1+2", "@Bob/Slash"),
        Student("zoë", "Zoë", "Ünal"),
    ]


def test_a_path_without_a_file_is_named_as_such(tmp_path):
    with pytest.raises(LabError, match=r"there is no file .*rooster\.csv; nothing was changed"):
        read_roster(tmp_path / "rooster.csv")


def test_the_note_on_a_row_of_canvas_says_what_the_row_is(tmp_path):
    text = 'Student,ID,SIS User ID,SIS Login ID\n    Points Possible,,,\n"Lovelace, Ada",7,s7,ada\n'
    (tmp_path / "roster.csv").write_text(text)
    assert read_roster(tmp_path / "roster.csv").notes == ["line 2: Canvas's row 'Points Possible' is left out"]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separator_and_byte_order_mark_do_not_matter(roster, separator):
    text = "\ufeff" + OWN.replace(",", separator) + separator.join(["ada", "Ada", "L", "e"]) + "\r\n\r\n"
    assert roster(text) == [Student("ada", "Ada", "L", "e")]


def test_the_exports_of_canvas_moodle_and_gradescope_are_rosters(roster):
    canvas = 'Student,ID,SIS User ID,SIS Login ID,Section\n    Points Possible,,,,\n"Lovelace, Ada",7,s7,ada,A\n'
    assert roster(canvas) == [Student("ada", "Ada", "Lovelace", "", "7", "s7", "A")]
    assert roster("First name,Surname,Username,ID number,Email address\nAda,Lovelace,ada,s7,a@b\n") == [
        Student("ada", "Ada", "Lovelace", "a@b", "", "s7")
    ]
    assert roster("First Name,Last Name,SID,Email\nAda,Lovelace,ada,a@b\n") == [
        Student("ada", "Ada", "Lovelace", "a@b")
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no heading"),
        ("first_name,last_name\nAda,B\n", "no column with the students' ids"),
        (OWN, "names no student"),
        (OWN + "../root,A,B,c\n", "line 2: the id '../root' cannot be a student's"),
        (OWN + "a/b,A,B,c\n", "cannot be a student's"),
        (OWN + "*,A,B,c\n", "cannot be a student's"),
        (OWN + "a+b,A,B,c\n", "cannot be a student's"),
        (OWN + ",A,B,c\n", "cannot be a student's"),
        (OWN + "ada,A,B,c\nAda,A,C,c\n", "line 3: the id 'Ada' stands in an earlier row"),
        (OWN + "ada,Ada,Lovelace, Countess,a@b\n", "5 cells, but the heading has 4"),
        (OWN + 'ada,"A\x1b[31m",B,c\n', r"first_name 'A\x1b[31m' holds U+001B, which cannot be printed"),
        (OWN + f"ada,{'A' * 201},B,c\n", "first_name has 201 characters, expected at most 200"),
        (OWN + 'ada,"Ada,B,c\n', "is a quote missing?"),
        ((OWN + "zoë,Zoë,B,c\n").encode("latin-1"), "not in UTF-8"),
    ],
)
def test_what_cannot_be_a_roster_is_refused_with_the_line(roster, text, said):
    with pytest.raises(LabError) as refused:
        roster(text)
    assert said in str(refused.value)


def test_a_line_break_in_a_cell_is_a_space(roster):
    assert roster(OWN + 'ada,"Ada\r\nMaria",Lovelace,c\n') == [Student("ada", "Ada Maria", "Lovelace", "c")]


def test_equal_rows_are_one_student(roster):
    assert len(roster(OWN + "ada,A,B,c\nada,A,B,c\n")) == 1


def test_who_is_gone_from_a_newer_roster_is_marked_unless_a_row_was_unreadable(roster):
    before = [Student("ada", "A", "B", "c"), Student("bob")]
    newer = with_dropped(roster(OWN + "ada,A,B,c\n"), before)
    assert newer == [Student("ada", "A", "B", "c"), Student("bob", dropped="not on the newest roster")]
    assert current(newer) == before[:1] and addressees(newer) == newer
    assert with_dropped(roster(OWN + "bob,,,\nada,A,B,c\n"), newer) == [Student("bob"), before[0]], "bob is back"
    assert with_dropped(roster(OWN + "ada,A,B,c\nb/b,,,\n"), before) == before, "b/b may be bob"
    renamed = with_dropped(roster(OWN + "a.b@u,A,B,c\n"), before)
    assert [student.id for student in addressees(renamed)] == ["a.b@u", "bob"], "a file of A B has one owner"


@pytest.mark.parametrize("status", ["dropped", "Withdrawn", "inactive"])
def test_a_row_can_say_that_a_student_left(roster, status):
    text = f"student_id,first_name,status\nada,Ada,{status}\nbob,Bob,active\n"
    assert roster(text) == [Student("ada", "Ada", dropped=f"the roster says {status}"), Student("bob", "Bob")]


def test_a_saved_roster_reads_back_and_a_damaged_one_says_so(tmp_path):
    path, students = tmp_path / "roster.json", [Student("zoë", "=1", "a,b")]
    with pytest.raises(LabError, match="class init"):
        saved_roster(path)
    save_roster(path, students)
    assert saved_roster(path) == students
    path.write_text('[{"id": "a", "what": 1}]')
    with pytest.raises(LabError, match="damaged"):
        saved_roster(path)


@pytest.mark.parametrize(
    ("text", "zone", "utc"),
    [
        ("01=2030-01-31 23:59", "Europe/Berlin", "2030-01-31T22:59:00+00:00"),
        ("1=2030-07-31T23:59", "Europe/Berlin", "2030-07-31T21:59:00+00:00"),
        ("roofline=2030-07-31 23:59-07:00", "Europe/Berlin", "2030-08-01T06:59:00+00:00"),
        ("01=2030-07-31", "UTC", "2030-07-31T23:59:59+00:00"),
    ],
)
def test_a_due_date_is_kept_in_utc(text, zone, utc):
    assert parse_due(text, zone) == ("01_roofline", utc)


@pytest.mark.parametrize(
    ("text", "zone", "said"),
    [
        ("01=tomorrow", "UTC", "is not a time"),
        ("01", "UTC", "is not a time"),
        ("77=2030-01-31", "UTC", "no lab '77'"),
        ("01=2030-01-31", "Mars/Base", "no time zone 'Mars/Base'"),
        ("01=2030-01-31", "../etc/passwd", "no time zone"),
        ("01=2030-03-31 02:30", "Europe/Berlin", "clocks skip it"),
    ],
)
def test_what_is_no_due_date_is_refused(text, zone, said):
    with pytest.raises(LabError, match=said):
        parse_due(text, zone)


HOUR = 3600


@pytest.mark.parametrize(
    ("seconds", "lost"),
    [(0, 0), (900, 0), (901, 8), (24 * HOUR + 900, 8), (24 * HOUR + 901, 16), (10 * 24 * HOUR + 900, 40)],
)
def test_each_day_begun_after_the_grace_period_costs(seconds, lost):
    policy = LatePolicy(percent_per_day=10, most_percent=50, grace_minutes=15, closes_days=10)
    assert policy.penalty(80, seconds) == pytest.approx(lost)


def test_work_later_than_the_last_day_earns_nothing():
    assert LatePolicy(10, 50, 0, closes_days=2).penalty(80, 2 * 24 * HOUR + 1) == 80
    assert LatePolicy().penalty(80, 1e9) == 0


def test_what_is_not_named_of_a_late_policy_stays():
    policy = LatePolicy(percent_per_day=10, most_percent=50, grace_minutes=15, closes_days=10)
    assert policy.changed(percent_per_day=None, most_percent=40) == LatePolicy(10, 40, 15, 10)
    assert policy.changed(percent_per_day=0, closes_days=math.inf) == LatePolicy(0, 50, 15, None)
    assert str(LatePolicy()) == "Late work loses nothing."
    assert str(policy) == (
        "Late work loses 10% per day begun, at most 50%, 15 minutes are free; after 10 days it earns nothing."
    )


@pytest.mark.parametrize("wrong", [{"percent_per_day": 101}, {"most_percent": -1}, {"grace_minutes": float("nan")}])
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(LabError, match=next(iter(wrong))):
        LatePolicy(**wrong)


def test_settings_read_back_and_damaged_ones_say_so(tmp_path):
    assert settings.load(tmp_path) == Settings()
    chosen = Settings(LatePolicy(10, 50, 15, 3), {"01_roofline": "2030-01-31T22:59:00+00:00"}, ("01_roofline",), 10)
    settings.save(chosen, tmp_path)
    assert settings.load(tmp_path) == chosen
    assert chosen.due_date("01_roofline") == parse_utc("2030-01-31 22:59 UTC"), "as the gradebook keeps it"
    path = settings.class_folder(tmp_path) / "settings.json"
    for damaged in ("{", json.dumps({"late": {"what": 1}}), "[]"):
        path.write_text(damaged)
        with pytest.raises(LabError, match="damaged"):
            settings.load(tmp_path)
