"""`threeloops class regrade`: one exercise of every graded submission, by the lab's tests as they are now."""

import hashlib
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.api import Gradebook, MissingEntry, SubmittedAssignment

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.authoring.manifest import SETUPS, Exercise, Kind, Manifest, manifest, split_test_id
from threeloops_grader.classroom.enrolment import gradebook
from threeloops_grader.classroom.register import log
from threeloops_grader.classroom.regrading import plan as plans
from threeloops_grader.classroom.regrading.execution import Result, execute_exercise
from threeloops_grader.classroom.regrading.lock import alone
from threeloops_grader.classroom.regrading.plan import Change, Plan
from threeloops_grader.classroom.results.handins import not_graded
from threeloops_grader.grading.fingerprint import fingerprint
from threeloops_grader.sandbox.pool import Sandbox
from threeloops_grader.submissions import reading
from threeloops_grader.submissions.folder import student_name
from threeloops_grader.submissions.reading import BadSubmission, Submission

__all__ = ["Regraded", "regrade"]

_NEWER = "a newer submission is not graded yet"


@dataclass
class Regraded:
    """The result of a regrade. `left_out` are students whose submission was not regraded, with the reason; `manual`
    those whose manual points hide the new ones; `others` are cells of other exercises that were changed, too."""

    plan: Plan
    left_out: list[str] = field(default_factory=list)
    manual: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


@dataclass
class _Class:
    """The graded submissions of a lab, with what is known of each student before the regrade."""

    submitted: dict[str, str] = field(default_factory=dict)
    """A hash of each student's submitted file."""
    notebooks: dict[str, str] = field(default_factory=dict)
    """A hash of each graded notebook."""
    old: dict[str, float] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    manual: list[str] = field(default_factory=list)
    others: dict[str, None] = field(default_factory=dict)


def regrade(
    lab: Lab,
    name: str,
    sandbox: Sandbox,
    jobs: int,
    keep_higher: bool,
    say: Callable[[str], None] = print,
) -> Regraded:
    """Regrade one exercise for the class, and complete a regrade of this lab that was cut off, first.

    Raises:
        LabError: there is no such exercise, the gradebook or a graded notebook gives other points for its parts than
            the lab does, or another command changes points of the lab. Nobody's points were changed.
        MachineFault, OSError: the machine is at fault.
    """
    trusted = manifest(lab)
    exercise = trusted.exercise(name)
    of_cut_off: list[str] = []
    with alone(lab, f"threeloops class regrade {lab.number:02d} {exercise.id}"):
        if (cut_off := plans.read_plan(lab)) is not None:
            say(f"completing the regrade of {cut_off.exercise} that was cut off")
            left_out = plans.carry_out(lab, cut_off)
            if cut_off.exercise == exercise.id and cut_off.fingerprint["after"] == fingerprint(lab, None, sandbox):
                before = _graded_class(trusted, exercise)
                left_out = list(dict.fromkeys([*before.left_out, *left_out]))
                return Regraded(cut_off, left_out, before.manual, list(before.others))
            if cut_off.exercise != exercise.id:
                of_cut_off = [f"{line} (in the regrade of {cut_off.exercise})" for line in left_out]
        before = _graded_class(trusted, exercise)
        results = execute_exercise(lab, exercise, before.submitted, sandbox, jobs)
        before.left_out += [f"{name}: {_NEWER}" for name in before.submitted if name not in results]
        plan = _plan(lab, exercise, before, results, fingerprint(lab, None, sandbox), keep_higher)
        plans.write_plan(lab, plan)
        left_out = plans.carry_out(lab, plan)
    return Regraded(plan, [*of_cut_off, *before.left_out, *left_out], before.manual, list(before.others))


def _graded_class(trusted: Manifest, exercise: Exercise) -> _Class:
    """Find the graded submissions, and check that all of them have the exercise's parts with the lab's points."""
    graded = _Class()
    lab = trusted.lab
    with gradebook(lab.root) as book:
        _require_same_points(book, lab, exercise)
        for submission in book.assignment_submissions(lab.slug):
            student = submission.student_id
            reason, _ = not_graded(lab, student)
            path = plans.graded_notebook(lab, student)
            if not reason and not path.is_file():
                reason = "not graded yet"
            try:
                if not reason:
                    graded.submitted[student] = hashlib.sha256(_content(lab, student)).hexdigest()
            except BadSubmission as error:
                reason = str(error)
            if reason:
                graded.left_out.append(f"{student}: {reason}")
                continue
            text = path.read_text(encoding="utf-8")
            graded.notebooks[student] = _sha256(text)
            graded.others |= dict.fromkeys(_changed(trusted, exercise, student, text))
            _note_points(graded, submission, exercise)
    return graded


def _content(lab: Lab, student: str) -> bytes:
    submitted = Path(lab.root, "submitted")
    handed_in = Submission(student_name(student), submitted / student / lab.slug / f"{lab.slug}.ipynb")
    return reading.content(handed_in, submitted)


def _note_points(graded: _Class, submission: SubmittedAssignment, exercise: Exercise) -> None:
    student = submission.student_id
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades if grade.name in exercise.tests]
    graded.old[student] = math.fsum(grade.auto_score or 0.0 for grade in grades)
    graded.manual += [
        f"{student}: {grade.manual_score:g} for {grade.name}" for grade in grades if grade.manual_score is not None
    ]


def _require_same_points(book: Gradebook, lab: Lab, exercise: Exercise) -> None:
    try:
        cells = {cell.name: cell.max_score for cell in book.find_notebook(lab.slug, lab.slug).grade_cells}
    except MissingEntry:
        raise LabError(
            f"the gradebook does not know lab {lab.slug}; run `threeloops class release {lab.number:02d}` first"
        ) from None
    of_exercise = {test: points for test, points in cells.items() if split_test_id(test)[0] == exercise.id}
    _require(lab, exercise, of_exercise, "the gradebook", release=True)


def _require(lab: Lab, exercise: Exercise, points: dict[str, float], where: str, release: bool) -> None:
    wanted = {part.test: part.points for part in exercise.parts}
    if points == wanted:
        return
    differing = sorted(test for test in {*points, *wanted} if points.get(test) != wanted.get(test))
    what = ", ".join(f"{_points(points.get(test))} for {test} (now {_points(wanted.get(test))})" for test in differing)
    number = f"{lab.number:02d}"
    steps = [f"threeloops class release {number}"] if release else []
    steps.append(f"threeloops class grade {number} --again")
    raise LabError(
        f"{where} has {what}. A regrade changes results, not the points that a part is worth, so nothing was changed. "
        f"Run {', then '.join(f'`{step}`' for step in steps)}: it grades the whole lab by the new points and keeps "
        "manual points and comments"
    )


def _points(value: float | None) -> str:
    return "no such part" if value is None else f"{value:g} points"


def _changed(trusted: Manifest, exercise: Exercise, student: str, text: str) -> list[str]:
    """Check that a graded notebook has the exercise's parts, with the lab's points. Returns the names of tests and
    setup cells outside of the exercise that the lab has changed since."""
    cells = {cell.get("id", ""): cell for cell in nbformat.reads(text, as_version=4).cells}
    points = {
        name: float(cell.metadata.nbgrader.points)
        for name, cell in cells.items()
        if _is_test(cell) and split_test_id(name)[0] == exercise.id
    }
    _require(trusted.lab, exercise, points, f"the graded notebook of {student}", release=False)
    masters = [cell for cell in trusted.master.cells if trusted.kinds[cell.id] in (Kind.TEST, *SETUPS)]
    elsewhere = [cell for cell in masters if cell.id not in exercise.tests]
    return [cell.id for cell in elsewhere if cell.id not in cells or cells[cell.id].source != cell.source]


def _is_test(cell: NotebookNode) -> bool:
    return cell.cell_type == "code" and bool(cell.metadata.get("nbgrader", {}).get("grade"))


def _plan(
    lab: Lab, exercise: Exercise, before: _Class, results: dict[str, Result], decides: str, keep_higher: bool
) -> Plan:
    changes = {}
    would_lose = {}
    for student, result in results.items():
        new = math.fsum(result.points.values())
        if keep_higher and new < before.old[student]:
            would_lose[student] = [before.old[student], new]
            continue
        text = plans.graded_notebook(lab, student).read_text(encoding="utf-8")
        after = _sha256(plans.with_cells(text, result.cells))
        changes[student] = Change(before.old[student], result.points, result.cells, before.notebooks[student], after)
    prints: dict[str, Any] = {"before": log.last_fingerprint(lab.slug, lab.root), "after": decides}
    return Plan(secrets.token_hex(8), lab.slug, exercise.id, prints, changes, would_lose)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
