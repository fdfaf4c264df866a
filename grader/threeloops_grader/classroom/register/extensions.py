"""Extensions and accommodations: a later due time for some students, from an instructor's table."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from threeloops.files import replace_text

from threeloops_grader.authoring.labs import LabError, find_lab
from threeloops_grader.classroom.register.clock import read_time
from threeloops_grader.classroom.register.roster import Student
from threeloops_grader.classroom.register.tables import read_columns
from threeloops_grader.submissions.folder import spelling

__all__ = ["EVERY_LAB", "Extension", "merged", "read_extensions", "same", "save_extensions", "saved_extensions"]

EVERY_LAB = "*"
_MOST_HOURS = 24 * 366
_MOST_TIMES = 10
_KINDS = ("due", "hours", "factor")


@dataclass(frozen=True)
class Extension:
    """A later due time of a student for a lab, or for every lab. One of three says which: `due`, a time in UTC; `hours`
    after the class's due date; or `factor`, of the time between the opening of the lab and that date.

    Without any of the three it removes an earlier extension.
    """

    student: str
    lab: str
    due: str = ""
    hours: float | None = None
    factor: float | None = None

    def extended(self, due: datetime, opened: datetime | None) -> datetime:
        """Return the student's due time. It is never before the class's, and times have no zone.

        A factor has no effect if nobody knows when the lab was opened.
        """
        later = due
        if self.due:
            later = datetime.fromisoformat(self.due).replace(tzinfo=None)
        elif self.hours is not None:
            later = due + timedelta(hours=self.hours)
        elif self.factor is not None and opened is not None:
            later = due + (self.factor - 1) * (due - opened)
        return max(due, later)

    def __str__(self) -> str:
        given = f"until {self.due}" if self.due else f"{self.hours:g} hours more" if self.hours is not None else ""
        return given or (f"{self.factor:g} times the time" if self.factor is not None else "no extension")


def same(name: str) -> str:
    """Return what two spellings of a student's id have in common."""
    return spelling(name)


def read_extensions(
    path: Path, students: Sequence[Student], due: Mapping[str, str], opened: Mapping[str, str], zone: str
) -> list[Extension]:
    """Read a table `student,lab,due`, with `hours` or `factor` as other columns. `*` in `lab` means every lab, and
    `none` in `due` removes an extension.

    Raises LabError that lists all faults: somebody is not on the roster, a value is not usable, two rows contradict
    each other, or an extension would have no effect.
    """
    ids = {same(student.id).casefold(): student.id for student in students}
    rows: dict[tuple[str, str], Extension] = {}
    faults = []
    for line, row in read_columns(path, ("student", "lab"), _KINDS):
        try:
            student = ids.get(same(row["student"]).casefold())
            if student is None:
                raise LabError(f"{row['student']!r} is not on the roster; expected an id of `threeloops class init`")
            extension = _extension(student, row, zone)
            _require_effect(extension, due, opened)
            before = rows.setdefault((extension.student, extension.lab), extension)
            if before != extension:
                raise LabError(f"an earlier row gives {extension.student} another extension for this lab; keep one")
        except LabError as error:
            faults.append(f"line {line}: {error}")
    if not rows and not faults:
        faults = ["it has no rows"]
    if faults:
        shown = faults[:20] + ([f"and {len(faults) - 20} more"] if len(faults) > 20 else [])
        raise LabError(f"{path} cannot be used; nothing was changed:\n  " + "\n  ".join(shown))
    return list(rows.values())


def _extension(student: str, row: dict[str, str], zone: str) -> Extension:
    lab = EVERY_LAB if row["lab"] == EVERY_LAB else find_lab(row["lab"]).slug
    given = [kind for kind in _KINDS if row.get(kind)]
    if len(given) != 1:
        raise LabError(f"it gives {' and '.join(given) or 'no time'}; expected one of {', '.join(_KINDS)}")
    kind = given[0]
    text = row[kind]
    if kind == "due":
        return Extension(student, lab, "" if text.casefold() == "none" else read_time(text, zone).isoformat())
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if kind == "hours":
        if not 0 < value <= _MOST_HOURS:
            raise LabError(f"hours are {text!r}, expected a number above 0 and at most {_MOST_HOURS:,}")
        return Extension(student, lab, hours=value)
    if not 1 < value <= _MOST_TIMES:
        raise LabError(f"the factor is {text!r}, expected a number above 1 and at most {_MOST_TIMES}, such as 1.5")
    return Extension(student, lab, factor=value)


def _require_effect(extension: Extension, due: Mapping[str, str], opened: Mapping[str, str]) -> None:
    """Raise LabError if the lab has no due date to extend, or the new one is not later."""
    lab = extension.lab
    if lab == EVERY_LAB or str(extension) == "no extension":
        return
    if lab not in due:
        raise LabError(f"{lab} has no due date to extend; set it with `threeloops class init ROSTER --due {lab[:2]}=…`")
    if extension.factor is not None and lab not in opened:
        raise LabError(
            f"a factor needs the time at which students got {lab}, and it is not released; release it first, or say "
            f"when with `threeloops class init ROSTER --opened {lab[:2]}=…`"
        )
    if extension.due and datetime.fromisoformat(extension.due) <= datetime.fromisoformat(due[lab]):
        raise LabError(f"{extension.due} is not later than {due[lab]}, when {lab} is due for all")


def merged(before: Sequence[Extension], rows: Sequence[Extension]) -> list[Extension]:
    """Return the extensions with those of a new table in place of earlier ones for the same student and lab."""
    new = {(row.student, row.lab): row for row in (*before, *rows)}
    return sorted((row for row in new.values() if str(row) != "no extension"), key=lambda row: (row.student, row.lab))


def save_extensions(path: Path, extensions: Sequence[Extension]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps([asdict(extension) for extension in extensions], indent=1) + "\n")


def saved_extensions(path: Path) -> list[Extension]:
    """Return the extensions of the class, or none without the file. Raises LabError if it was damaged."""
    try:
        extensions = [Extension(**row) for row in json.loads(path.read_text(encoding="utf-8"))]
        for extension in extensions:
            extension.extended(datetime(2000, 1, 1), None)
        return extensions
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise LabError(f"{path} is damaged ({error!r}); delete it, and give all extensions again") from None
