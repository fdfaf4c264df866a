"""Let the attempt that the class's rule names count, where a student handed in several."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.classroom.exchange.attempts import Attempt, attempts_folder, attempts_of, first, keep, place
from threeloops_grader.grading.grade import Options
from threeloops_grader.sandbox.pool import Sandbox
from threeloops_grader.submissions.folder import student_name
from threeloops_grader.worklist.grade_class import grade_class

__all__ = ["place_best", "place_last"]

_Share = Callable[[str, datetime | None], float]
"""The share of the points, 0 to 1, that a student would lose for a hand-in at a time (None: not known)."""


def place_best(lab: Lab, share: _Share, sandbox: Sandbox, jobs: int) -> list[str]:
    """Put each student's best attempt into `submitted/`, where nbgrader grades it. Returns a line per student with
    several attempts.

    The best has the most automatic points after the late penalty, with slip days. Of equal ones the earliest counts. If
    all were refused, the latest counts. Raises MachineFault, OSError: nothing was replaced. Attempts that are graded
    already are not executed again.
    """
    several: dict[str, list[Attempt]] = {}
    for student, attempts in _attempts(lab).items():
        folder = lab.root / "submitted" / student / lab.slug
        if len(attempts) > folder.is_dir():
            keep(lab.root, lab.slug, student, folder)
            several[student] = attempts_of(lab.root, lab.slug, student)
    if not several:
        return []
    kept_in = attempts_folder(lab.root, lab.slug)
    report = grade_class(kept_in, lab, Options(sandbox, jobs=jobs, records=kept_in / ".threeloops"))
    points = {record.student: record.score for record in report.records if record.status == "graded"}
    lines = []
    for student, attempts in several.items():
        values = [_points(lab, attempt, points, share) for attempt in attempts]
        best = max(range(len(attempts)), key=lambda number: (values[number], -number))
        if values[best] < 0:  # all were refused
            best = len(attempts) - 1
        place(lab.root, lab.slug, attempts[best])
        shown = ", ".join("refused" if value < 0 else f"{value:g}" for value in values)
        which = f"attempt {best + 1} of {len(attempts)}"
        lines.append(f"{student_name(student)}: {which} counts ({shown} points after lateness)")
    return lines


def place_last(lab: Lab, rule: str) -> list[str]:
    """Put each student's last attempt, or the last of the first N, into `submitted/`, after another rule had put a
    different one there. Returns a line per student whose attempt is another one now."""
    lines = []
    for student, attempts in _attempts(lab).items():
        number = min(len(attempts), first(rule) or len(attempts))
        chosen = attempts[number - 1]
        if chosen.folder != lab.root / "submitted" / student / lab.slug:
            place(lab.root, lab.slug, chosen)
            lines.append(f"{student_name(student)}: attempt {number} of {len(attempts)} at {lab.slug} counts now")
    return lines


def _attempts(lab: Lab) -> dict[str, list[Attempt]]:
    """Return the attempts of everybody who handed in, also of those of whom a killed run left nothing in
    `submitted/`."""
    names = {path.parent.name for path in (lab.root / "submitted").glob(f"*/{lab.slug}")}
    names |= {path.name.rpartition("+")[0] for path in attempts_folder(lab.root, lab.slug).glob("*+*")}
    attempts = {student: attempts_of(lab.root, lab.slug, student) for student in sorted(names)}
    return {student: own for student, own in attempts.items() if own}


def _points(lab: Lab, attempt: Attempt, points: dict[str, int | float], share: _Share) -> float:
    """Return the points of an attempt after lateness, or -1 if it was refused."""
    copy = keep(lab.root, lab.slug, attempt.student, attempt.folder) or Path()
    name = student_name(copy.parent.name)
    if name not in points:
        return -1.0
    return points[name] * (1 - share(attempt.student, attempt.time if attempt.is_timed else None))
