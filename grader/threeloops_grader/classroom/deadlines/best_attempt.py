"""Grade all attempts of a lab where several were handed in, and let the best one count."""

from pathlib import Path

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.classroom.deadlines.terms import Terms
from threeloops_grader.classroom.exchange.attempts import Attempt, attempts_folder, attempts_of, keep, place
from threeloops_grader.grading.grade import Options
from threeloops_grader.sandbox.pool import Sandbox
from threeloops_grader.submissions.folder import student_name
from threeloops_grader.worklist.grade_class import grade_class

__all__ = ["place_best"]


def place_best(lab: Lab, terms: Terms, sandbox: Sandbox, jobs: int) -> list[str]:
    """Put each student's best attempt into `submitted/`, where nbgrader grades it. Returns a line per student with
    several attempts.

    The best has the most automatic points after the late penalty, before slip days. Of equal ones the earliest counts.
    Raises MachineFault, OSError: nothing was replaced. Attempts that are graded already are not executed again.
    """
    several: dict[str, list[Attempt]] = {}
    kept_in = attempts_folder(lab.root, lab.slug)
    names = {path.parent.name for path in (lab.root / "submitted").glob(f"*/{lab.slug}")}
    names |= {path.name.rpartition("+")[0] for path in kept_in.glob("*+*")}  # also of a run that was killed
    for student in sorted(names):
        folder = lab.root / "submitted" / student / lab.slug
        if len(attempts_of(lab.root, lab.slug, student)) > folder.is_dir():
            keep(lab.root, lab.slug, student, folder)
            several[student] = attempts_of(lab.root, lab.slug, student)
    if not several:
        return []
    report = grade_class(kept_in, lab, Options(sandbox, jobs=jobs, records=kept_in / ".threeloops"))
    points = {record.student: record.score for record in report.records if record.status == "graded"}
    lines = []
    for student, attempts in several.items():
        values = [_points(lab, attempt, points, terms) for attempt in attempts]
        best = max(range(len(attempts)), key=lambda number: (values[number], -number))
        place(lab.root, lab.slug, attempts[best])
        shown = ", ".join("refused" if value < 0 else f"{value:g}" for value in values)
        which = f"attempt {best + 1} of {len(attempts)}"
        lines.append(f"{student_name(student)}: {which} counts ({shown} points after lateness)")
    return lines


def _points(lab: Lab, attempt: Attempt, points: dict[str, int | float], terms: Terms) -> float:
    """Return the points of an attempt after lateness, or -1 if it was refused."""
    copy = keep(lab.root, lab.slug, attempt.student, attempt.folder) or Path()
    name = student_name(copy.parent.name)
    if name not in points:
        return -1.0
    due, _ = terms.due_for(attempt.student, lab.slug)
    time = attempt.time if attempt.is_timed else None
    late = 0.0 if due is None or time is None else max(0.0, (time - due).total_seconds())
    return points[name] * (1 - terms.policy.share(late))
