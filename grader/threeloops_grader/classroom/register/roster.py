"""Read a roster from an instructor's CSV file: a file of their own, or an export of Canvas, Gradescope or Moodle."""

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from threeloops.files import replace_text

from threeloops_grader.authoring.labs import LabError
from threeloops_grader.submissions.folder import is_student, spelling, student_name

__all__ = ["Student", "read_roster", "save_roster", "saved_roster"]

_MAX_BYTES = 16 << 20
_MAX_TEXT = 200
_COLUMNS = {
    "id": ("student_id", "student id", "id", "username", "login", "login id", "sis login id", "sid"),
    "first_name": ("first_name", "first name", "given name"),
    "last_name": ("last_name", "last name", "surname", "family name"),
    "name": ("name", "full name", "student"),
    "email": ("email", "email address", "e-mail", "mail"),
    "canvas_id": ("canvas_id",),
    "sis_id": ("sis_id", "sis user id", "id number"),
    "section": ("section",),
}
"""Headings by which each field is known, the preferred one first; capitals do not matter."""

_PATTERN = frozenset("*?[],+")
"""nbgrader separates with , and +, and takes the others in a student's id for a pattern of file names."""


@dataclass(frozen=True)
class Student:
    """A row of the roster. `id` is the account's name at the exchange, and the folder's name in `submitted/`."""

    id: str
    first_name: str = ""
    last_name: str = ""
    email: str = ""
    canvas_id: str = ""
    sis_id: str = ""
    section: str = ""

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.first_name, self.last_name) if part)


def read_roster(path: Path) -> list[Student]:
    """Return the students of a CSV file, separated by commas, semicolons or tabs, with or without a byte-order mark.

    Two equal rows are one student.

    Raises:
        LabError: a column is missing, or rows cannot be students'; the message lists all of those with their lines.
    """
    table = _table(path)
    heading = [_key(cell) for cell in table[0][1]] if table else []
    column = {field: at for field, names in _COLUMNS.items() if (at := _first(names, heading)) is not None}
    is_canvas = "sis login id" in heading
    if is_canvas:  # its column ID holds Canvas's own number, which an import needs
        column["id"] = heading.index("sis login id")
        if "id" in heading:
            column["canvas_id"] = heading.index("id")
    if "id" not in column:
        raise LabError(
            f"{path} has no column with the students' ids (found {', '.join(heading) or 'no heading'}); expected one "
            f"of {', '.join(_COLUMNS['id'])}: the account's name, as nbgrader's exchange knows it"
        )
    students: dict[str, Student] = {}
    faults = []
    for line, row in table[1:]:
        if not any(cell.strip() for cell in row) or (is_canvas and row[0].strip() == "Points Possible"):
            continue
        given = {field: row[at].strip() if at < len(row) else "" for field, at in column.items()}
        student = _student(given)
        if why := _fault(student, len(row), len(heading)):
            faults.append(f"line {line}: {why}")
        elif students.setdefault(spelling(student.id).casefold(), student) != student:
            faults.append(f"line {line}: the id {student.id!r} stands in an earlier row with other values; keep one")
    if not students and not faults:
        faults.append("it names no student")
    if faults:
        shown = faults[:20] + ([f"and {len(faults) - 20} more"] if len(faults) > 20 else [])
        raise LabError(f"{path} cannot be the roster; nothing was changed:\n  " + "\n  ".join(shown))
    return list(students.values())


def _table(path: Path) -> list[tuple[int, list[str]]]:
    """Return the rows, each with the line on which it ends."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise LabError(f"{path} has {path.stat().st_size:,} bytes, a roster at most {_MAX_BYTES:,}")
        text = path.read_bytes().decode("utf-8-sig")
        head = text.partition("\n")[0]
        separator = max(",;\t", key=head.count)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        return [(reader.line_num, row) for row in reader]
    except UnicodeDecodeError as error:
        raise LabError(
            f"{path} is not in UTF-8 (byte {error.start} is 0x{error.object[error.start]:02x}); save it as CSV UTF-8"
        ) from None
    except csv.Error as error:
        raise LabError(f"{path}, line {reader.line_num}: {error}; is a quote missing?") from None


def _key(heading: str) -> str:
    return " ".join(heading.strip().casefold().split())


def _first(names: Sequence[str], heading: list[str]) -> int | None:
    return next((heading.index(name) for name in names if name in heading), None)


def _student(given: dict[str, str]) -> Student:
    name = given.pop("name", "")
    if name and not (given.get("first_name") or given.get("last_name")):
        last, comma, first = name.partition(",")  # "Last, First", as Canvas writes it
        given["first_name"], given["last_name"] = (first.strip(), last.strip()) if comma else ("", name)
    given["id"] = student_name(given["id"])
    return Student(**given)


def _fault(student: Student, cells: int, columns: int) -> str:
    if cells > columns:
        return f"{cells} cells, but the heading has {columns}; quote what holds the separator"
    if not is_student(student.id) or _PATTERN & set(student.id):
        return (
            f"the id {student.id[:60]!r} cannot be a student's: expected the account's name, without slashes, control "
            "characters or any of * ? [ ] , +, and with no dot in front"
        )
    for field in fields(student):
        value = getattr(student, field.name)
        if len(value) > _MAX_TEXT or not value.isprintable():
            return f"{field.name} holds {len(value)} characters or one that cannot be printed; at most {_MAX_TEXT}"
    return ""


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
