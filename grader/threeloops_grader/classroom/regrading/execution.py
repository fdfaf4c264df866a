"""Execute one exercise of each graded submission with the lab's tests as they are now. Nobody's points change here."""

import hashlib
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_notebook
from nbgrader.preprocessors import LimitOutput
from nbgrader.utils import determine_grade
from threeloops.files import replace_text

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.authoring.manifest import Exercise
from threeloops_grader.classroom.nbgrader_plugin import warn_of_no_isolation
from threeloops_grader.grading.grade import Options, execute
from threeloops_grader.grading.scoring import Report
from threeloops_grader.machine.faults import MachineFault, cause
from threeloops_grader.submissions import reading
from threeloops_grader.submissions.folder import student_name
from threeloops_grader.submissions.reading import BadSubmission, Submission

__all__ = ["Result", "execute_all", "records_folder", "submission_of"]


@dataclass(frozen=True)
class Result:
    """The test cells of one exercise as executed for one student, and the points of each by its grade_id."""

    cells: dict[str, dict[str, Any]]
    points: dict[str, float]


def records_folder(lab: Lab) -> Path:
    """Return the folder of finished executions, from which an interrupted run goes on."""
    return Path(lab.root, "class", "regrade", lab.slug)


def submission_of(lab: Lab, student: str) -> Submission:
    return Submission(student_name(student), Path(lab.root, "submitted", student, lab.slug, f"{lab.slug}.ipynb"))


def execute_all(
    lab: Lab,
    exercise: Exercise,
    contents: Mapping[str, bytes],
    options: Options,
    decides: str,
    on_result: Callable[[str], None] = lambda student: None,
) -> dict[str, Result]:
    """Execute the exercise for every student of `contents`, which has the submitted files, `options.jobs` at a time.

    An interrupted run is continued: finished executions of the same file by the same lab (`decides`) are not repeated.

    Raises:
        MachineFault, OSError: the machine is at fault. Nobody's points were changed.
    """
    results = {}
    with ThreadPoolExecutor(max_workers=options.jobs) as workers:
        futures = {
            student: workers.submit(_result, lab, exercise, student, content, options, decides)
            for student, content in contents.items()
        }
        try:
            for student, future in futures.items():
                results[student] = future.result()
                on_result(student)
        finally:
            workers.shutdown(cancel_futures=True)
    return results


def _result(lab: Lab, exercise: Exercise, student: str, content: bytes, options: Options, decides: str) -> Result:
    digest = hashlib.sha256(f"{decides}\0{exercise.id}\0{student}\0".encode() + content).hexdigest()[:32]
    path = records_folder(lab) / f"{digest}.json"
    try:
        return Result(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        pass
    try:
        result = _executed(lab, exercise, content, options)
    except (BadSubmission, LabError):
        raise
    except Exception as error:
        why = str(error) if isinstance(error, MachineFault) else cause(error)
        raise MachineFault(
            f"regrading stopped at {student_name(student)}, and nobody's points were changed: {why}"
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps({"cells": result.cells, "points": result.points}) + "\n")
    return result


def _executed(lab: Lab, exercise: Exercise, content: bytes, options: Options) -> Result:
    executed = execute(reading.parse(content), lab, options, Report())
    tests = new_notebook(cells=[cell for cell in executed.cells if cell.id in exercise.tests])
    if options.sandbox == "none":
        warn_of_no_isolation(tests)
    LimitOutput().preprocess(tests, {})  # as nbgrader's autograde does
    points = {cell.id: float(determine_grade(cell)[0] or 0.0) for cell in tests.cells}
    if points.keys() != set(exercise.tests):
        raise LabError(f"lab {lab.slug}: {exercise.id} gave results of {sorted(points)}, expected {exercise.tests}")
    return Result({cell.id: _kept(cell) for cell in tests.cells}, points)


def _kept(cell: NotebookNode) -> dict[str, Any]:
    return {name: cell[name] for name in ("source", "outputs", "execution_count")}
