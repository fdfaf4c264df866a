"""The scores of a class, one row per student, read from nbgrader's gradebook and the autograded notebooks."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry, SubmittedAssignment

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.classroom.register.roster import Student
from threeloops_grader.classroom.results.handins import not_graded, strangers_in
from threeloops_grader.submissions.folder import spelling

__all__ = ["Row", "class_scores"]


@dataclass
class Row:
    """One student's lab. `status` is "missing" (nothing handed in: 0 points), "graded", or "ungraded" (no score, and
    `reason` says why).

    `parts` has the points per test cell, and `messages` the messages of the tests that did not earn full points.
    """

    student: Student
    status: str
    max_score: float
    handed_in: datetime | None = None
    seconds_late: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    penalty: float = 0.0
    score: float | None = None
    reason: str = ""
    refused: bool = False


def class_scores(book: Gradebook, lab: Lab, students: Sequence[Student]) -> tuple[list[Row], list[str]]:
    """Return a row per student of the roster, and the ids that handed in and are not on it.

    Raises LabError: the gradebook does not know the lab.
    """
    try:
        assignment = book.find_assignment(lab.slug)
    except MissingEntry:
        raise LabError(
            f"the gradebook does not know lab {lab.slug}; run `threeloops class release {lab.number:02d}` first"
        ) from None
    handed_in = {spelling(s.student_id): s for s in book.assignment_submissions(lab.slug)}
    rows = [_row(lab, s, handed_in.pop(spelling(s.id), None), assignment.max_score) for s in students]
    strangers = {submission.student_id for submission in handed_in.values()}
    strangers |= set(strangers_in(lab, [row.student.id for row in rows]))
    return rows, sorted(strangers)


def _row(lab: Lab, student: Student, submission: SubmittedAssignment | None, most: float) -> Row:
    name = student.id if submission is None else submission.student_id
    reason, refused = not_graded(lab, name)
    if submission is None:
        status = "ungraded" if reason else "missing"
        return Row(student, status, most, score=None if reason else 0.0, reason=reason, refused=refused)
    late = submission.total_seconds_late
    row = Row(student, "graded", most, submission.timestamp, late, reason=reason, refused=refused)
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
    if reason or all(grade.auto_score is None and grade.manual_score is None for grade in grades):
        row.status = "ungraded"
        row.reason = reason or "not graded yet"
        return row
    row.parts = {grade.name: float(grade.score or 0.0) for grade in grades}
    row.penalty = float(submission.late_submission_penalty or 0.0)
    row.score = max(0.0, float(submission.score) - row.penalty)
    row.messages = _messages(lab, submission.student_id)
    return row


def _messages(lab: Lab, student: str) -> dict[str, str]:
    """Return the reason that each failed test gives in `autograded/`. There are none if that folder is missing or
    damaged."""
    path = Path(lab.root, "autograded", student, lab.slug, f"{lab.slug}.ipynb")
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        tests = {part.test for part in manifest(lab).parts}
        return {
            cell["id"]: output["traceback"][0]
            for cell in cells
            if cell.get("id") in tests
            for output in cell.get("outputs", [])
            if output["output_type"] == "error"
        }
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return {}
