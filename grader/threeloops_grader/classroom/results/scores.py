"""The scores of a class, one row per student, read from nbgrader's gradebook and the autograded notebooks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry, SubmittedAssignment

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.classroom.deadlines.handed_in import HandIn
from threeloops_grader.classroom.deadlines.penalties import Penalties
from threeloops_grader.classroom.deadlines.terms import Lateness
from threeloops_grader.classroom.exchange.uncollected import uncollected
from threeloops_grader.classroom.register.roster import Student
from threeloops_grader.classroom.results.handins import not_graded, strangers_in
from threeloops_grader.submissions.folder import spelling

__all__ = ["Row", "class_scores", "on_roster"]


@dataclass
class Row:
    """One student's lab. `status` is "missing" (nothing handed in: 0 points), "graded", "ungraded" (no score, and
    `reason` says why), or "dropped" (the student left the class, and counts nowhere).

    `parts` has the points per test cell, and `messages` the messages of the tests that did not earn full points.
    `hand_in` is what counts for the student, who may be in a group, and `notes` are what an instructor should know.
    `unmarked` says that a part which only a person can mark has no points yet; the score counts it as 0.
    """

    student: Student
    status: str
    max_score: float
    handed_in: datetime | None = None
    lateness: Lateness = field(default_factory=Lateness)
    slip_days_left: int = 0
    hand_in: HandIn | None = None
    parts: dict[str, float] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    penalty: float = 0.0
    score: float | None = None
    reason: str = ""
    refused: bool = False
    unmarked: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def seconds_late(self) -> float:
        """Seconds after this student's own due time."""
        return self.lateness.seconds


def on_roster(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without those of students who have left the class."""
    return [row for row in rows if row.status != "dropped"]


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
    penalties = Penalties(book, lab.root)
    handed_in = {spelling(s.student_id): s for s in book.assignment_submissions(lab.slug)}
    unusable = uncollected(lab.root, lab.slug)
    rows = [_row(lab, s, handed_in, penalties, assignment.max_score, unusable) for s in students]
    penalties.refresh(lab.slug if not penalties.terms.policy.slip_days else None)
    names = {spelling(student.id) for student in students}
    strangers = {submission.student_id for name, submission in handed_in.items() if name not in names}
    strangers |= set(strangers_in(lab, [row.student.id for row in rows]))
    return rows, sorted(strangers)


def _row(
    lab: Lab,
    student: Student,
    submissions: Mapping[str, SubmittedAssignment],
    penalties: Penalties,
    most: float,
    unusable: Mapping[str, str],
) -> Row:
    hand_in = penalties.counting(student.id, lab.slug)
    name = student.id if hand_in is None else hand_in.student
    submission = submissions.get(spelling(name))
    name = name if submission is None else submission.student_id
    reason, refused = not_graded(lab, penalties.hand_ins.folder(name))
    files = {
        who: unusable[spelling(who)]
        for who in penalties.hand_ins.mates(student.id, lab.slug)
        if spelling(who) in unusable
    }
    if hand_in is None and not reason and files:
        reason, refused = f"not collected: {'; '.join(files.values())}", True
    row = Row(student, "graded", most, hand_in=hand_in, reason=reason, refused=refused)
    row.lateness = penalties.lateness(student.id, lab.slug)
    row.slip_days_left = penalties.slip_days_left(student.id)
    row.notes = _notes(hand_in, student, spelling(student.id) in submissions)
    if hand_in is not None:
        row.notes += [
            f"{who}: a later file was not collected, so an earlier one counts: {why}" for who, why in files.items()
        ]
    if submission is None:
        row.status = "ungraded" if reason else "missing"
        row.score = None if reason else 0.0
    else:
        row.handed_in = submission.timestamp if hand_in is None else hand_in.time
        _add_points(row, lab, submission, penalties)
    if student.dropped:
        points = "no points" if row.score is None or row.status == "missing" else f"{row.score:g} of {most:g} points"
        row.status = "dropped"
        row.reason = f"{student.dropped}; {points} stay in the gradebook"
        row.score = None
        row.messages = {}
    return row


def _add_points(row: Row, lab: Lab, submission: SubmittedAssignment, penalties: Penalties) -> None:
    """Add the points of the submission that counts, less what the row's own student loses for lateness."""
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
    if row.reason or all(grade.auto_score is None and grade.manual_score is None for grade in grades):
        row.status = "ungraded"
        row.reason = row.reason or "not graded yet"
        return
    row.parts = {grade.name: float(grade.score or 0.0) for grade in grades}
    row.unmarked = any(g.auto_score is None and g.manual_score is None and g.max_score > 0 for g in grades)
    row.penalty = penalties.penalty(row.student.id, submission)
    row.score = max(0.0, float(submission.score) - row.penalty)
    row.messages = _messages(lab, submission.student_id)


def _notes(hand_in: HandIn | None, student: Student, has_own: bool) -> list[str]:
    """Return what an instructor should know of a group: two different notebooks, or a member's own submission in the
    gradebook (`has_own`) that does not count."""
    if hand_in is None or not hand_in.group:
        return []
    if hand_in.others:
        others = ", ".join(hand_in.others)
        return [
            f"group {hand_in.group}: {others} handed in another notebook than {hand_in.student}, whose hand-in counts "
            f"because it is the latest"
        ]
    if has_own and spelling(student.id) != spelling(hand_in.student):
        return [
            f"group {hand_in.group}: {student.id} handed in the same notebook as {hand_in.student}. Mark "
            f"{hand_in.student}'s: points that you give to {student.id}'s do not count"
        ]
    return []


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
