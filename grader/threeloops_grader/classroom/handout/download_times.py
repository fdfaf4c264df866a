"""Read when a downloaded submission was handed in, as far as its platform says so.

Gradescope's export has times with an offset. Blackboard and Brightspace write the time into names, and Moodle into its
grading worksheet, as the user's clock showed it. Canvas marks late files and gives no time.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.handout.owners import Folder, file_of, gradescope_folder
from threeloops_grader.classroom.register.clock import read_time, require_zone
from threeloops_grader.classroom.register.roster import Student, student_of
from threeloops_grader.classroom.register.tables import read_table

__all__ = ["Times", "is_marked_late", "settled", "time_of", "worksheet_times"]

_BLACKBOARD = re.compile(r"_attempt_(\d{4}-\d\d-\d\d)-(\d\d)-(\d\d)-(\d\d)")
_BRIGHTSPACE = re.compile(r"\d+-\d+ - [^/]+? - (?P<time>[^/]+)/")
_NBGRADER = re.compile(r"_(\d{4}-\d\d-\d\d \d\d[:-]?\d\d[:-]?\d\d) UTC")
_LATE = re.compile(r"[^/_]+_LATE_\d+_")
_WORKSHEET = re.compile(
    r"(?:last modified|zuletzt geändert|dernière modification|última modificación) \(", re.IGNORECASE
)
"""The heading of a grading worksheet's time of the submission. That of the grade comes after it."""

_MONTHS = (
    "jan ene", "feb fév", "mar mär", "apr avr abr", "may mai", "jun juin", "jul juil", "aug aoû ago", "sep", "oct okt",
    "nov", "dec dez déc dic",
)  # fmt: skip
"""How the months begin in English, German, French and Spanish."""

_WORDS = re.compile(
    r"(?:(?P<day>\d{1,2})\.? (?:de )?(?P<month>[^\W\d_]{3,})|(?P<month_first>[^\W\d_]{3,})\.? (?P<day_last>\d{1,2}))"
    r",?\.? "
    r"(?:de )?(?P<year>\d{4}),? (?:à )?(?P<hour>\d{1,2})[:.h]?(?P<minute>\d\d)(?::\d\d)? ?(?P<half>[AP])?\.?M?",
    re.IGNORECASE,
)
"""A time such as "Monday, 6 January 2025, 10:31 PM" or "May 18, 2025 1224 PM"."""


@dataclass
class Times:
    """The times of handing in, by student, in UTC, and notes on them for the instructor.

    `unread` says why there are no times although the platform gives some.
    """

    utc: dict[str, datetime] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def time_of(name: str, folders: Mapping[str, Folder]) -> datetime | None:
    """Return when a downloaded file was handed in, or None if its platform does not say. The time has no zone if the
    platform names none."""
    if folder := folders.get(gradescope_folder(name)):
        return _timestamp(folder.created_at)
    if match := _BLACKBOARD.search(name):
        return _timestamp("{} {}:{}:{}".format(*match.groups()))
    if match := _BRIGHTSPACE.search(name):
        return _in_words(match["time"])
    if match := _NBGRADER.search(name):
        time = _timestamp(match[1])
        return time.replace(tzinfo=UTC) if time else None
    return None


def is_marked_late(name: str) -> bool:
    """Return whether Canvas marked the file as late."""
    return bool(_LATE.match(file_of(name)))


def worksheet_times(path: Path, students: Sequence[Student]) -> dict[str, datetime]:
    """Return the times in Moodle's grading worksheet, without a zone, by student.

    A student whose time is not certain has none, for example if two rows have only the student's name and two times.

    Raises LabError: it is not such a worksheet, or one of its times cannot be read.
    """
    table = read_table(path)
    column = next((at for at, heading in enumerate(table.heading) if _WORKSHEET.match(heading)), None)
    if column is None:
        raise LabError(
            f"{path} has no times of submissions (found {', '.join(table.heading)[:300]}); expected Moodle's grading "
            "worksheet, with a column such as 'Last modified (submission)'"
        )
    times_of: dict[str, set[datetime]] = defaultdict(set)
    for line, row in table.rows:
        text = row[column].strip() if column < len(row) else ""
        if text in ("", "-"):
            continue
        given = {name: row[at].strip() if at < len(row) else "" for name, at in table.column.items()}
        if "identifier" in table.heading:
            given["moodle_id"] = row[table.heading.index("identifier")].strip()
            given = {name: value for name, value in given.items() if value != given["moodle_id"] or name == "moodle_id"}
        time = _in_words(text)
        if time is None:
            raise LabError(
                f"{path}, line {line}: {text!r} is not a time that is known here, such as "
                "'Monday, 6 January 2025, 10:31 PM'; nothing was collected"
            )
        row_of, _ = student_of({"id": "", **given})
        fits = _fitting(row_of, students)
        if len(fits) == 1:
            times_of[fits[0].id].add(time)
    return {student: times.pop() for student, times in times_of.items() if len(times) == 1}


def _fitting(row: Student, students: Sequence[Student]) -> list[Student]:
    """Return the students that a row of a worksheet fits: by number, or else by id or email address, or else by name.
    Two students may have the same name."""
    if same_number := [s for s in students if s.moodle_id and s.moodle_id == row.moodle_id]:
        return same_number
    others = [s for s in students if not (s.moodle_id and row.moodle_id)]
    ids = {own.casefold() for own in (row.id, row.sis_id, row.email) if own}
    if same_id := [s for s in others if ids & {own.casefold() for own in (s.id, s.sis_id, s.email) if own}]:
        return same_id
    return [s for s in others if row.name and not row.email and s.name.casefold() == row.name.casefold()]


def settled(times: Mapping[str, datetime], zone: str | None) -> Times:
    """Return the times in UTC. Those without an offset are in `zone`; if that is None, they are not used, and it is
    said. The zone is never guessed."""
    result = Times()
    without = sorted(student for student, time in times.items() if time.tzinfo is None)
    if without and zone is None:
        shown = f"{times[without[0]]:%Y-%m-%d %H:%M} for {without[0]}"
        result.unread.append(
            f"{len(without)} of {len(times)} times of handing in name no time zone ({shown}) and are not used; run it "
            "again with --timezone, the zone that the platform shows times in, such as Europe/Berlin or UTC"
        )
    for student, time in times.items():
        if time.tzinfo is not None:
            result.utc[student] = time.astimezone(UTC)
        elif zone is not None:
            try:
                result.utc[student] = read_time(f"{time:%Y-%m-%d %H:%M:%S}", zone, f"{student}: the time of handing in")
            except LabError as error:  # an hour that the clocks skip or repeat
                result.unread.append(f"{error}, with --handed-in; it is not used")
    if without and zone is not None:
        count = f"{len(without)} submission{'s' if len(without) > 1 else ''}"
        result.notes.append(f"times without an offset are read as those of {require_zone(zone).key}, for {count}")
    return result


def _timestamp(text: str) -> datetime | None:
    """Return a time such as `2025-01-06 22:31:00.123456789 -08:00`."""
    match = re.match(r"['\"]?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.\d+)? ?(Z|UTC|[+-]\d\d:?\d\d)?", text)
    if match is None:
        return None
    zone = {"Z": "+00:00", "UTC": "+00:00"}.get(match[3] or "", match[3] or "")
    try:
        return datetime.fromisoformat(f"{match[1]} {match[2]}{zone}")
    except ValueError:
        return None


def _in_words(text: str) -> datetime | None:
    match = _WORDS.search(" ".join(text.split()))
    if match is None:
        return None
    word = (match["month"] or match["month_first"]).casefold()
    month = next((n for n, starts in enumerate(_MONTHS, 1) if word.startswith(tuple(starts.split()))), None)
    hour = int(match["hour"])
    if half := (match["half"] or "").upper():
        hour = hour % 12 + 12 * (half == "P")
    try:
        return datetime(
            int(match["year"]), month or 0, int(match["day"] or match["day_last"]), hour, int(match["minute"])
        )
    except ValueError:
        return None
