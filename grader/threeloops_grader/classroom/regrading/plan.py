"""The plan of a regrade: written whole before anything changes, then carried out in steps that may be repeated.

A run that is cut off leaves the plan in `class/`. Every command of the class then says so, and the next `class regrade`
carries it out to the end.
"""

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbgrader.api import Gradebook, SubmittedNotebook
from sqlalchemy.exc import SQLAlchemyError
from threeloops.files import replace_text, replacing

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.classroom.deadlines.penalties import Penalties
from threeloops_grader.classroom.enrolment import gradebook
from threeloops_grader.classroom.register import log
from threeloops_grader.classroom.register import settings as register
from threeloops_grader.classroom.results.handins import not_graded
from threeloops_grader.machine.faults import cause

__all__ = [
    "Change",
    "Plan",
    "carry_out",
    "graded_notebook",
    "read_plan",
    "unfinished",
    "with_cells",
    "write_plan",
]


@dataclass(frozen=True)
class Change:
    """One student's regrade. `points` has the new points of each part; `cells` its new content. `before` and `after`
    are the hashes of the graded notebook without and with the change."""

    old: float
    points: dict[str, float]
    cells: dict[str, dict[str, Any]]
    before: str
    after: str

    @property
    def new(self) -> float:
        return math.fsum(self.points.values())


@dataclass(frozen=True)
class Plan:
    """A regrade of one exercise for the class. `kept` has those who would have lost points, with what they kept and
    what they would have now."""

    id: str
    lab: str
    exercise: str
    fingerprint: dict[str, str | None]
    changes: dict[str, Change]
    kept: dict[str, list[float]] = field(default_factory=dict)


def _path(lab: Lab) -> Path:
    return register.class_folder(lab.root) / f"regrade_{lab.slug}.json"


def write_plan(lab: Lab, plan: Plan) -> None:
    replace_text(_path(lab), json.dumps(asdict(plan)) + "\n")


def read_plan(lab: Lab) -> Plan | None:
    """Return the plan that a run left unfinished, or None. Raises LabError if its file is damaged."""
    path = _path(lab)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        changes = {student: Change(**change) for student, change in data.pop("changes").items()}
        return Plan(changes=changes, **data)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LabError(
            f"{path}, the plan of an unfinished regrade, is damaged ({error!r}). Move it away, and grade the whole lab "
            f"again: `threeloops class grade {lab.number:02d} --again`"
        ) from None


def unfinished(lab: Lab) -> str:
    """Return a sentence about a regrade of the lab that was cut off while it changed points, or ""."""
    if not _path(lab).exists():
        return ""
    plan = read_plan(lab)
    exercise = plan.exercise if plan else ""
    return (
        f"A regrade of {exercise} was cut off: some of the points or feedback are new, and others old. "
        f"`threeloops class regrade {lab.number:02d} {exercise}` completes it."
    )


def graded_notebook(lab: Lab, student: str) -> Path:
    return Path(lab.root, "autograded", student, lab.slug, f"{lab.slug}.ipynb")


def with_cells(text: str, cells: dict[str, dict[str, Any]]) -> str:
    """Return a graded notebook with some cells, by their ids, replaced."""
    notebook = nbformat.reads(text, as_version=4)
    for cell in notebook.cells:
        if new := cells.get(cell.get("id", "")):
            cell.update(nbformat.from_dict(new))
    written: str = nbformat.writes(notebook)
    return written if written.endswith("\n") else written + "\n"


def carry_out(lab: Lab, plan: Plan) -> list[str]:
    """Change the gradebook in one transaction, then the graded notebooks, and append to the log.

    Returns students who are left out, with the reason: they were graded again, or handed in again, since the plan was
    made. May be repeated, and repeats nothing that is done.

    Raises LabError if the machine fails in between. The plan stays, so the next run completes it.
    """
    left_out = {student: why for student, change in plan.changes.items() if (why := _no_longer(lab, student, change))}
    changes = {student: change for student, change in plan.changes.items() if student not in left_out}
    try:
        with gradebook(lab.root) as book:
            _write_points(book, lab, changes)
        for student, change in changes.items():
            _write_notebook(graded_notebook(lab, student), change)
    except (OSError, LabError, SQLAlchemyError) as error:
        why = cause(error) if isinstance(error, OSError) else str(error).partition("\n")[0]
        raise LabError(f"{why}. {unfinished(lab)}") from error
    if not any(entry.get("run") == plan.id for entry in log.lines(lab.root)[0]):
        points = {student: [change.old, change.new] for student, change in changes.items()}
        details = {"exercise": plan.exercise, "fingerprint": plan.fingerprint, "run": plan.id, "points": points}
        if plan.kept:
            details["kept"] = plan.kept
        log.append(f"class regrade {lab.number:02d} {plan.exercise}", lab.slug, lab.root, **details)
    _path(lab).unlink()
    return [f"{student}: {why}" for student, why in left_out.items()]


def _no_longer(lab: Lab, student: str, change: Change) -> str:
    """Return why the plan does not hold for a student any more, or "" if it holds."""
    reason, _ = not_graded(lab, student)
    path = graded_notebook(lab, student)
    present = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    if reason or present not in (change.before, change.after):
        return reason or "graded again since"
    return ""


def _write_points(book: Gradebook, lab: Lab, changes: dict[str, Change]) -> None:
    for submission in book.assignment_submissions(lab.slug):
        if change := changes.get(submission.student_id):
            for notebook in submission.notebooks:
                _write_grades(notebook, change)
    book.db.commit()
    Penalties(book, lab.root).refresh(lab.slug)


def _write_grades(notebook: SubmittedNotebook, change: Change) -> None:
    for grade in notebook.grades:
        points = change.points.get(grade.name)
        if points is not None and grade.auto_score != points:
            grade.auto_score = points
            # As nbgrader does it: somebody looks at manual points again whose automatic ones are others now.
            grade.needs_manual_grade = grade.manual_score is not None


def _write_notebook(path: Path, change: Change) -> None:
    """Replace the cells in a graded notebook. Its time stays that of its grading, by which a later submission is
    recognised."""
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() == change.after:
        return
    status = path.stat()
    with replacing(path) as file:
        file.write(with_cells(content.decode(), change.cells).encode())
        file.flush()
        os.fchmod(file.fileno(), status.st_mode & 0o777)
        os.utime(file.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
