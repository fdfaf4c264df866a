"""Read a roster: an instructor's own CSV file, or the export of a platform (Canvas, Gradescope, Moodle and others)."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from threeloops.files import replace_text

from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.register.tables import Export, read_table, require_no_faults
from threeloops_grader.submissions.folder import is_student, spelling, student_name

__all__ = [
    "Roster", "Student", "addressees", "current", "fault_of", "read_roster", "save_roster", "saved_roster",
    "student_of", "with_dropped",
]  # fmt: skip

_MAX_TEXT = 200
_PATTERN = frozenset("*?[],+")
"""nbgrader separates with , and +, and takes the others in a student's id for a pattern of file names."""
_GONE = frozenset("dropped withdrawn withdrew inactive unenrolled unenroled suspended abgemeldet inaktiv".split())
"""Values of a status column that mean that a student has left the class. Other values mean nothing here."""
_LINES = re.compile(r"\s*[\r\n]+\s*")
"""Line breaks in a cell, which a spreadsheet shows as one text."""
_PARTICIPANT = re.compile(r"\D+(\d+)")
"""The identifier of a grading worksheet, such as "Participant 1234"."""


@dataclass(frozen=True)
class Student:
    """A row of the roster. `id` is the account's name at the exchange, and the folder's name in `submitted/`.
    `moodle_id` is the number in Moodle's grading worksheet, and in the names of the files that Moodle downloads.
    `lti_id` is the user's id at the LMS, to which grades are pushed. `dropped` says why a student is no longer in the
    class; "" for all others."""

    id: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    canvas_id: str = ""
    sis_id: str = ""
    section: str = ""
    moodle_id: str = ""
    lti_id: str = ""
    dropped: str = ""

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.first_name, self.last_name) if part)


class Roster(list[Student]):
    """The students of a file. `left_out` has a line per person who was not entered, and `notes` one per decision."""

    def __init__(self, students: list[Student], left_out: list[str], notes: list[str]) -> None:
        super().__init__(students)
        self.left_out = left_out
        self.notes = notes


def read_roster(path: Path) -> Roster:
    """Return the students of a CSV file (`read_table`).

    Rows of one student in several sections are one student. Rows without a student are left out and noted: points
    possible, totals, staff, Canvas's test student. The id is the account's name. If that is empty, it is the number in
    the student administration, or else the email address.

    Raises:
        LabError: no usable column, no student, or one id for two people.
    """
    table = read_table(path)
    column = _columns(table)
    students: dict[str, Student] = {}
    left_out: list[str] = []
    notes: list[str] = []
    twice: list[str] = []
    for line, row in table.rows:
        given = {field: _LINES.sub(" ", row[at].strip()) if at < len(row) else "" for field, at in column.items()}
        if why := _no_student(row, given):
            notes += [f"line {line}: {why}"] if any(given.values()) else []
            continue
        student, note = student_of(given)
        notes += [f"line {line}: {note}"] if note else []
        if why := _cells_too_many(row, len(table.heading)) or fault_of(student):
            left_out.append(f"line {line}: {why}")
            continue
        key = spelling(student.id).casefold()
        before = students.setdefault(key, student)
        if replace(before, section="") != replace(student, section=""):
            twice.append(f"line {line}: the id {student.id!r} stands in an earlier row with other values; keep one")
        elif student.section not in (before.section, *before.section.split(" and ")):
            students[key] = replace(before, section=f"{before.section} and {student.section}")
    faults = twice or ([] if students else left_out or ["it names no student"])
    require_no_faults(faults, path, "be the roster")
    return Roster(list(students.values()), left_out, notes)


def _columns(table: Export) -> dict[str, int]:
    """Return the column of each field, corrected for platforms whose headings mean something else."""
    column = dict(table.column)
    position = table.heading.index
    if table.has("id", "sis user id") or table.has("sis login id"):  # Canvas
        column.pop("id", None)
        if table.has("sis login id"):
            column["id"] = position("sis login id")
        if table.has("id"):
            column["canvas_id"] = position("id")
    if table.has("identifier", "status"):  # Moodle's grading worksheet
        column["moodle_id"] = position("identifier")
        if column.get("id") == column["moodle_id"]:
            del column["id"]
    return column


def _no_student(row: list[str], given: dict[str, str]) -> str:
    """Return why a row holds no student, or "" if it holds one."""
    first = next((cell.strip() for cell in row if cell.strip()), "")
    values = [value for field, value in given.items() if value and field not in ("role", "section", "status")]
    if first in ("Points Possible", "Manual Posting"):
        return f"Canvas's row {first!r} is left out"
    if not values:
        return "a row without a student is left out"
    if first.casefold().startswith("total") and len(values) == 1:
        return "a total is left out"
    if given.get("role", "Student").casefold() not in ("student", "learner", ""):
        return f"{given.get('name') or given.get('email') or first} has the role {given['role']!r} and is left out"
    if given.get("name") == "Student, Test" and "canvas_id" in given:
        return "Canvas's test student is left out"
    return ""


def student_of(given: dict[str, str]) -> tuple[Student, str]:
    """Return a student, and a note if the id is not the account's name as written in the file, or ""."""
    given = {field: value for field, value in given.items() if field != "role"}
    status = given.pop("status", "")
    if status.casefold() in _GONE:
        given["dropped"] = f"the roster says {status}"
    name = given.pop("name", "")
    if name and not (given.get("first_name") or given.get("last_name")):
        last, comma, first = name.partition(",")  # "Last, First", as Canvas writes it
        given["first_name"], given["last_name"] = (first.strip(), last.strip()) if comma else ("", name)
    if number := _PARTICIPANT.fullmatch(given.get("moodle_id", "")):
        given["moodle_id"] = number[1]
    for field in ("id", "sis_id"):
        given[field] = given.get(field, "").removeprefix("#")  # Brightspace writes #ada
    note = ""
    if not given["id"]:
        email = given.get("email", "")
        given["id"] = given["sis_id"] or (email if "@" in email else "")
        note = f"the account's name is empty, so the id is {given['id']}" if given["id"] else ""
    if re.fullmatch(r"\d+\.0", given["id"]):
        given["id"] = given["id"].removesuffix(".0")
        note = f"the id {given['id']}.0 was read as {given['id']}: a spreadsheet had turned it into a number"
    given["id"] = student_name(given["id"])
    return Student(**given), note


def _cells_too_many(row: list[str], columns: int) -> str:
    if any(cell.strip() for cell in row[columns:]):
        return f"{len(row)} cells, but the heading has {columns}; quote what holds the separator"
    return ""


def fault_of(student: Student) -> str:
    """Return why a student cannot be entered, or "" for one who can."""
    if not is_student(student.id) or _PATTERN & set(student.id):
        return (
            f"the id {student.id[:60]!r} cannot be a student's: expected the account's name, without slashes, control "
            "characters or any of * ? [ ] , +, and with no dot in front"
        )
    for field in fields(student):
        value = getattr(student, field.name)
        if len(value) > _MAX_TEXT:
            return f"{field.name} has {len(value)} characters, expected at most {_MAX_TEXT}"
        if hidden := [character for character in value if not character.isprintable()]:
            return f"{field.name} {value[:60]!r} holds U+{ord(hidden[0]):04X}, which cannot be printed; remove it"
    return ""


def current(students: Sequence[Student]) -> list[Student]:
    """Return the students without those who have left the class."""
    return [student for student in students if not student.dropped]


def addressees(students: Sequence[Student]) -> list[Student]:
    """Return the students to whom a file can belong: also those who left, unless somebody in the class is named
    alike, which is the same person after a change of ids."""
    names = {student.name for student in current(students)}
    return [student for student in students if not student.dropped or not student.name or student.name not in names]


def with_dropped(students: Roster, before: Sequence[Student]) -> list[Student]:
    """Return the students of a new roster, and those of the one before it who are gone from it, marked as dropped.

    If the new roster has rows that could not be read, nobody is marked: one of those rows may be the student's. A
    student who stays keeps the user at the LMS, whom no exported file names.
    """
    why = "" if students.left_out else "not on the newest roster"
    names = {spelling(student.id).casefold() for student in students}
    users = {spelling(student.id).casefold(): student.lti_id for student in before}
    gone = [student for student in before if spelling(student.id).casefold() not in names]
    stay = [replace(s, lti_id=s.lti_id or users.get(spelling(s.id).casefold(), "")) for s in students]
    return [*stay, *(replace(student, dropped=student.dropped or why) for student in gone)]


def save_roster(path: Path, students: list[Student]) -> None:
    replace_text(path, json.dumps([asdict(student) for student in students], indent=1) + "\n")


def saved_roster(path: Path) -> list[Student]:
    """Read the saved roster. Raises LabError if there is none, or it was damaged."""
    try:
        students = [Student(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
        if max(Counter(student.id for student in students).values(), default=0) > 1:
            raise ValueError("an id stands there twice")
        return students
    except FileNotFoundError:
        raise LabError(f"no roster at {path}; begin with `threeloops class init ROSTER.csv`") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise LabError(f"{path} is damaged ({error}); run `threeloops class init ROSTER.csv` again") from None
