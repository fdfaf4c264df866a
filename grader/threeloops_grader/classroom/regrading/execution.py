"""Execute one exercise of each graded submission with the lab's tests as they are now. Nobody's points change here."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_notebook
from nbgrader.preprocessors import LimitOutput
from nbgrader.utils import determine_grade

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.authoring.manifest import Exercise, manifest
from threeloops_grader.classroom.nbgrader_plugin import warn_of_no_isolation
from threeloops_grader.grading.grade import Options
from threeloops_grader.sandbox.pool import Sandbox, close_pools
from threeloops_grader.submissions.folder import student_name
from threeloops_grader.worklist.grade_class import decides, grade_class
from threeloops_grader.worklist.store import Executed, Key, RecordStore

__all__ = ["Result", "execute_exercise"]


@dataclass(frozen=True)
class Result:
    """The test cells of one exercise as executed for one student, and the points of each by its grade_id."""

    cells: dict[str, dict[str, Any]]
    points: dict[str, float]


def execute_exercise(
    lab: Lab, exercise: Exercise, handed_in: Mapping[str, str], sandbox: Sandbox, jobs: int
) -> dict[str, Result]:
    """Execute an exercise for every student of `handed_in`, which has the SHA-256 of each submitted file, `jobs` at a
    time.

    A run that is cut off continues where it stopped. Students who replaced their file meanwhile have no result.

    Raises:
        LabError: the lab or the grader was changed meanwhile.
        MachineFault: as `grade_class` does.
    """
    submitted = Path(lab.root, "submitted")
    records = submitted / ".threeloops"
    options = Options(sandbox, jobs, exercise.id, records=records, keep_executed=True)
    fingerprint = decides(lab, options)
    if handed_in:
        try:
            grade_class(submitted, lab, options, wanted=lambda submission: submission.path.parts[-3] in handed_in)
        finally:
            close_pools()
    store = RecordStore(records, lab.slug)
    if decides(lab, options) != fingerprint:
        raise LabError(
            f"{lab.source} or the grader was changed while {exercise.id} was regraded, so nobody's points changed; "
            "give the same command again"
        )
    results = {}
    for student, digest in handed_in.items():
        executed = store.load_executed(Key(student_name(student), digest, fingerprint))
        if executed is not None and set(exercise.tests) <= executed.cells.keys():
            results[student] = _result(lab, exercise, executed, sandbox)
    return results


def _result(lab: Lab, exercise: Exercise, executed: Executed, sandbox: Sandbox) -> Result:
    """Return the cells as nbgrader's autograde would write them, and the points that it would read from them."""
    cells = [cell for cell in manifest(lab).master.cells if cell.id in exercise.tests]
    tests = new_notebook(cells=[NotebookNode(cell) for cell in cells])
    for cell in tests.cells:
        cell.update(nbformat.from_dict(executed.cells[cell.id]))
    if sandbox == "none":
        warn_of_no_isolation(tests)
    LimitOutput().preprocess(tests, {})
    points = {cell.id: float(determine_grade(cell)[0] or 0.0) for cell in tests.cells}
    names = ("source", "outputs", "execution_count")
    return Result({cell.id: {name: cell[name] for name in names} for cell in tests.cells}, points)
