"""Push the scores of a lab to the platform: Assignment and Grade Services 2.0 (AGS).

The journal `class/lms_pushed.jsonl` gets a line before each score is sent and one after the platform accepted it. A
score counts as pushed only with the second line, so one whose answer was lost is sent again, with a later timestamp.
"""

import fcntl
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import requests
from pylti1p3.exception import LtiException, LtiServiceException
from pylti1p3.grade import Grade
from pylti1p3.lineitem import LineItem

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.classroom.lms.platform import AGS_SCOPES, Connector, explained, reason
from threeloops_grader.classroom.register.settings import class_folder
from threeloops_grader.classroom.results.scores import Row, on_roster

__all__ = ["Journal", "Planned", "Pushed", "opened_journal", "planned_scores", "push"]

_OF_ONE_STUDENT = (400, 404, 409, 412, 422)
"""Answers that concern one student. After three others in a row, the platform is left alone."""

_GIVE_UP = 3

_Sent = tuple[float, float, str]
"""Score, maximum and comment."""


@dataclass(frozen=True)
class Planned:
    """A row of the export, and what to do with it: "push", "same" (the platform has it), or "none" and why."""

    row: Row
    step: str
    score: float | None = None
    comment: str = ""
    why: str = ""

    @property
    def sent(self) -> _Sent:
        return (self.score or 0.0, self.row.max_score, self.comment)


@dataclass
class Pushed:
    """Who was pushed, and why others were not."""

    accepted: list[str] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    note: str = ""


class Journal:
    """The scores that were sent, per column of the LMS and user."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._held: dict[tuple[str, str], _Sent | None] = {}
        self._times: dict[tuple[str, str], datetime] = {}
        self.columns: dict[str, str] = {}
        text = file.read()
        whole = text[: text.rfind("\n") + 1]
        file.truncate(len(whole.encode()))  # a line that was cut off was written before anything was sent
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise LabError(
                    f"{file.name}, line {number} is damaged ({error}); delete the file, and the next push sends every "
                    "score again"
                ) from None

    def _take(self, entry: dict[str, Any]) -> None:
        key = (entry["column"], entry["user"])
        sent: _Sent = (float(entry["score"]), float(entry["maximum"]), str(entry["comment"]))
        self._times[key] = datetime.fromisoformat(entry["timestamp"])
        self._held[key] = sent if entry["accepted"] else None
        self.columns[entry["lab"]] = entry["column"]

    def has(self, column: str, user: str, sent: _Sent) -> bool:
        return self._held.get((column, user)) == sent

    def next_time(self, column: str, user: str) -> datetime:
        """Return the time in milliseconds, later than that of every score sent before even if the clock is not."""
        now = datetime.now(UTC)
        now = now.replace(microsecond=now.microsecond // 1000 * 1000)
        before = self._times.get((column, user))
        return now if before is None else max(now, before + timedelta(milliseconds=1))

    def write(self, lab: str, column: str, user: str, sent: _Sent, time: datetime, accepted: bool) -> None:
        score, maximum, comment = sent
        entry = {
            "lab": lab, "column": column, "user": user, "score": score, "maximum": maximum, "comment": comment,
            "timestamp": _iso(time), "accepted": accepted,
        }  # fmt: skip
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()
        self._take(entry)


@contextmanager
def opened_journal(root: Path | None = None) -> Iterator[Journal]:
    """Open the journal. Raises LabError: it is damaged, or another push is running."""
    path = class_folder(root) / "lms_pushed.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(f"another `threeloops class lms push` is using {path}; wait for its end") from None
        file.seek(0)
        yield Journal(file)


def _iso(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds")


def planned_scores(
    lab: Lab,
    rows: Sequence[Row],
    journal: Journal,
    column: str,
    *,
    missing_as_zero: bool = False,
    comments: bool = False,
    again: bool = False,
) -> list[Planned]:
    """Decide what to do with each row. Scores are those of `class export`: after penalties, with two decimals.

    A row without a score is never pushed, and a dropped student has no row. A missing one is pushed as 0 only if
    `missing_as_zero`.
    """
    plans = []
    for row in on_roster(rows):
        if row.score is None:
            plans.append(Planned(row, "none", why=f"ungraded: {row.reason}"))
            continue
        plan = Planned(row, "push", float(f"{row.score:.2f}"), _comment(lab, row) if comments else "")
        if row.status == "missing" and not missing_as_zero:
            plan = Planned(row, "none", why="missing: nothing was handed in")
        elif not row.student.lti_id:
            plan = Planned(row, "none", plan.score, why="no user of the LMS is known for this student")
        elif not again and journal.has(column, row.student.lti_id, plan.sent):
            plan = Planned(row, "same", plan.score, plan.comment)
        plans.append(plan)
    return plans


def _comment(lab: Lab, row: Row) -> str:
    """Return the points per exercise, other points, and the penalty, as one line."""
    trusted = manifest(lab)
    tests = {test for exercise in trusted.exercises for test in exercise.tests}
    parts = [
        f"{exercise.id} {sum(row.parts.get(test, 0.0) for test in exercise.tests):g}/{exercise.points:g}"
        for exercise in trusted.exercises
    ]
    if others := [points for name, points in row.parts.items() if name not in tests]:
        parts.append(f"reflection {sum(others):g}")
    return ", ".join([*parts, f"late -{row.penalty:g}"] if row.penalty else parts)


def push(
    lab: Lab, rows: Sequence[Row], connector: Connector, journal: Journal, **options: bool
) -> tuple[list[Planned], Pushed]:
    """Push what the platform does not have yet to the lab's column, which is made for the first score.

    Every failure of one student's score is kept and the others are tried. After three failures in a row that concern
    the platform, it is left alone. Running it again completes it.

    Raises:
        LabError: the column cannot be found or made; nothing was pushed.
    """
    plans = planned_scores(lab, rows, journal, "", **options)
    if all(plan.step == "none" for plan in plans):
        return plans, Pushed()
    url = connector.platform.lineitems_url
    service = connector.grades()
    most = rows[0].max_score
    with explained(f"reading the columns at {url}", "--lineitems-url", AGS_SCOPES):
        wanted = LineItem().set_label(lab.slug).set_resource_id(lab.slug).set_score_maximum(most)
        column = service.find_or_create_lineitem(wanted, find_by="resource_id")
        address = column.get_id()
        if not address:
            raise LtiException("a column without an id")
    plans = planned_scores(lab, rows, journal, address, **options)
    result = Pushed()
    if (there := column.get_score_maximum()) != most:
        result.note = (
            f"the column counts {there:g} points there: scores of {most:g} are scaled by the LMS" if there else ""
        )
    _send([plan for plan in plans if plan.step == "push"], lab, column, service.put_grade, journal, result)
    return plans, result


def _send(
    plans: Sequence[Planned], lab: Lab, column: LineItem, put: Callable[..., Any], journal: Journal, result: Pushed
) -> None:
    address = str(column.get_id())
    in_a_row = 0
    stopped = ""
    for plan in plans:
        student = plan.row.student.id
        user = plan.row.student.lti_id
        if stopped:
            result.failed.append((student, f"not tried: {stopped}"))
            continue
        time = journal.next_time(address, user)
        journal.write(lab.slug, address, user, plan.sent, time, accepted=False)
        try:
            put(_grade(plan, time), column)
        except LabError as error:  # no token any more, or an address that must not be used
            stopped = str(error)
            result.failed.append((student, stopped))
        except (LtiException, requests.RequestException, ValueError) as error:
            result.failed.append((student, _advice(error)))
            own = isinstance(error, LtiServiceException) and error.response.status_code in _OF_ONE_STUDENT
            in_a_row = 0 if own else in_a_row + 1
            stopped = f"{_GIVE_UP} failures in a row, the last: {reason(error)}" if in_a_row == _GIVE_UP else ""
        else:
            in_a_row = 0
            journal.write(lab.slug, address, user, plan.sent, time, accepted=True)
            result.accepted.append(student)


def _grade(plan: Planned, time: datetime) -> Grade:
    row = plan.row
    score, maximum, comment = plan.sent
    grade = Grade().set_user_id(row.student.lti_id).set_score_given(score).set_score_maximum(maximum)
    grade.set_timestamp(_iso(time)).set_grading_progress("FullyGraded")
    grade.set_activity_progress("Initialized" if row.status == "missing" else "Completed")
    if comment:
        grade.set_comment(comment)
    # Canvas would count every score as one more attempt, handed in now and perhaps late.
    more: dict[str, Any] = {"https://canvas.instructure.com/lti/submission": {"new_submission": False}}
    if row.handed_in is not None:
        more["submission"] = {"submittedAt": _iso(row.handed_in.replace(tzinfo=UTC))}
    return grade.set_extra_claims(more)


def _advice(error: Exception) -> str:
    status = error.response.status_code if isinstance(error, LtiServiceException) else 0
    return reason(error) + {
        404: "; is this student still in the course?",
        409: "; the LMS has a later score: is this machine's clock right?",
        422: "; is this student still in the course?",
    }.get(status, "")
