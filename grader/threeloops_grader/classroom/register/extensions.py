"""Extensions and accommodations: a later due time for some students, from an instructor's table."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from threeloops.files import replace_text

from threeloops_grader.authoring.labs import LabError, find_lab
from threeloops_grader.classroom.register.clock import read_time, shown
from threeloops_grader.classroom.register.roster import Student
from threeloops_grader.classroom.register.settings import Settings
from threeloops_grader.classroom.register.tables import read_columns, require_no_faults
from threeloops_grader.submissions.folder import spelling

__all__ = ["EVERY_LAB", "Extension", "merged", "read_extensions", "save_extensions", "saved_extensions"]

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
        """Return the time that it gives, which may be before the class's due date. Times have no zone.

        A factor has no effect if nobody knows when the lab was opened.
        """
        if self.due:
            return datetime.fromisoformat(self.due).replace(tzinfo=None)
        if self.hours is not None:
            return due + timedelta(hours=self.hours)
        return due if self.factor is None or opened is None else due + (self.factor - 1) * (due - opened)

    def __str__(self) -> str:
        given = f"until {self.due}" if self.due else f"{self.hours:g} hours more" if self.hours is not None else ""
        return given or (f"{self.factor:g} times the time" if self.factor is not None else "no extension")


def read_extensions(path: Path, students: Sequence[Student], settings: Settings) -> list[Extension]:
    """Read a table `student,lab,due`, with `hours` or `factor` as other columns. `*` in `lab` means every lab, and
    `none` in `due` removes an extension.

    Raises LabError that lists all faults: somebody is not on the roster, a value is not usable, two rows contradict
    each other, or an extension would have no effect.
    """
    ids = {spelling(student.id).casefold(): student.id for student in students}
    rows: dict[tuple[str, str], Extension] = {}
    faults = []
    for line, row in read_columns(path, ("student", "lab"), _KINDS):
        try:
            student = ids.get(spelling(row["student"]).casefold())
            if student is None:
                raise LabError(f"{row['student']!r} is not on the roster; expected an id of `threeloops class init`")
            extension = _extension(student, row, settings.timezone)
            _require_effect(extension, settings)
            before = rows.setdefault((extension.student, extension.lab), extension)
            if before != extension:
                raise LabError(f"an earlier row gives {extension.student} another extension for this lab; keep one")
        except LabError as error:
            faults.append(f"line {line}: {error}")
    if not rows and not faults:
        faults = ["it has no rows"]
    require_no_faults(faults, path)
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


def _require_effect(extension: Extension, settings: Settings) -> None:
    """Raise LabError if the lab has no due date, the new one is not later, or a factor has no time to count from."""
    lab = extension.lab
    if str(extension) == "no extension":
        return
    if lab != EVERY_LAB and lab not in settings.due:
        raise LabError(f"{lab} has no due date to extend; set it with `threeloops class init ROSTER --due {lab[:2]}=…`")
    labs = [slug for slug in settings.released if slug in settings.due] if lab == EVERY_LAB else [lab]
    unopened = [slug for slug in labs if slug not in settings.opened]
    if extension.factor is not None and unopened:
        first = unopened[0][:2]
        release = "" if unopened[0] in settings.released else f"`threeloops class release {first}` first, or "
        raise LabError(
            f"a factor needs the time at which students got {', '.join(unopened)}, and nobody knows it; "
            f"{release}say it with `threeloops class init ROSTER --opened {first}=…`"
        )
    if extension.factor is not None and lab in settings.due:
        opened = settings.opening(lab)
        due_date = settings.due_date(lab)
        if opened is not None and due_date is not None and opened >= due_date:
            raise LabError(
                f"a factor gives no more time: {lab} was opened at {shown(opened, settings.timezone)} and is due at "
                f"{shown(due_date, settings.timezone)}; correct one of them with `threeloops class init ROSTER`"
            )
    if extension.due and lab in settings.due:
        due = datetime.fromisoformat(settings.due[lab])
        later = datetime.fromisoformat(extension.due)
        if later <= due:
            times = [shown(time, settings.timezone) for time in (later, due)]
            raise LabError(f"{times[0]} is not later than {times[1]}, when {lab} is due for all")


def merged(before: Sequence[Extension], rows: Sequence[Extension]) -> list[Extension]:
    """Return the extensions with those of a new table in place of earlier ones for the same student and lab."""
    new = {(spelling(row.student), row.lab): row for row in (*before, *rows)}
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
