"""Grade one notebook through the wall, and make its record."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nbformat import NotebookNode

from threeloops_grader.authoring.labs import Lab, LabLimits
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.grading import records
from threeloops_grader.grading.records import Record, Test
from threeloops_grader.grading.scoring import OnTest, Report, prepare, run
from threeloops_grader.sandbox.pool import Sandbox
from threeloops_grader.submissions.submitted import NotThisLab

__all__ = ["Options", "execute", "failed_record", "grade_notebook"]


@dataclass(frozen=True)
class Options:
    """The options of grading. `only` names an exercise. `visible` leaves out hidden tests and withholds nothing.
    `records` is the folder of finished records. `fresh` grades again despite these records, and replaces them.
    `keep_executed` keeps the executed cells beside the records, for nbgrader."""

    sandbox: Sandbox
    jobs: int = 1
    only: str | None = None
    visible: bool = False
    records: Path | None = None
    fresh: bool = False
    keep_executed: bool = False
    limits: LabLimits | None = None


def grade_notebook(
    notebook: NotebookNode,
    lab: Lab,
    student: str,
    options: Options,
    on_test: OnTest | None = None,
    report: Report | None = None,
) -> Record:
    """Grade one notebook; a notebook that is not of this lab becomes a failed record, never an exception.

    `report` gets the executed notebook and all notes.

    Raises:
        MachineFault, OSError, MemoryError: the machine or the course is at fault, and the submission has no points yet.
    """
    report = Report() if report is None else report
    started = time.perf_counter()
    try:
        execute(notebook, lab, options, report, on_test)
    except NotThisLab as error:
        return failed_record(student, lab, options, str(error))
    return _record(student, lab, options, report, "graded", time.perf_counter() - started)


def execute(
    notebook: NotebookNode, lab: Lab, options: Options, report: Report, on_test: OnTest | None = None
) -> NotebookNode:
    """Execute a notebook through the wall; failing cells are results, not exceptions.

    Returns the executed notebook in the master's shape. Raises NotThisLab.
    """
    trusted = prepare(notebook, lab, report, visible=options.visible)
    chosen = {name: getattr(options, name) for name in ("sandbox", "jobs", "only", "limits")}
    run(trusted, report, on_test=on_test, **chosen)
    return report.notebook


def failed_record(student: str, lab: Lab, options: Options, why: str) -> Record:
    """Return the record of a submission that cannot be graded."""
    return _record(student, lab, options, Report(notes=[why]), "failed", 0.0)


def _record(
    student: str, lab: Lab, options: Options, report: Report, status: Literal["graded", "failed"], seconds: float
) -> Record:
    by_name = {t.name: t for t in report.tests}
    trusted = manifest(lab, visible=options.visible)
    wanted = (trusted.exercise(options.only),) if options.only else trusted.exercises
    missing = "not graded: the submission failed before this test" if status == "failed" else "this test was not run"
    parts = [part for exercise in wanted for part in exercise.parts]
    results = [by_name.get(part.test) or Test(part.test, 0.0, part.points, missing) for part in parts]
    return Record(
        student=student,
        score=sum(t.score for t in results),
        max_score=sum(t.max_score for t in results),
        status=status,
        seconds=round(seconds, 3),
        verified_on="cpu",  # kernels are interpreted in graded runs
        reflection="complete" if report.reflection == "complete" else "incomplete",
        notes=records.short_notes(report.notes),
        tests=results,
    )
