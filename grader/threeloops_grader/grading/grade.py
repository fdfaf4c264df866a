"""Grade a class: every submission goes through the wall, in parallel, and gets its own record, which the others cannot
affect.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from nbformat import NotebookNode
from threeloops.files import replace_text

from threeloops_grader.authoring.labs import Lab, LabError, LabLimits
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.grading import records
from threeloops_grader.grading.fingerprint import fingerprint
from threeloops_grader.grading.records import ClassReport, Record, Test
from threeloops_grader.grading.scoring import OnTest, Report, prepare, run
from threeloops_grader.machine.faults import MachineFault, cause
from threeloops_grader.sandbox.pool import Sandbox
from threeloops_grader.submissions import reading as submissions
from threeloops_grader.submissions.reading import BadSubmission, Submission
from threeloops_grader.submissions.submitted import NotThisLab

__all__ = ["Options", "execute", "grade_class", "grade_notebook"]


@dataclass(frozen=True)
class Options:
    """The options of grading. `only` names an exercise. `visible` leaves out hidden tests and withholds nothing.
    `records` is the folder of finished records. `fresh` grades again despite these records, and replaces them."""

    sandbox: Sandbox
    jobs: int = 1
    only: str | None = None
    visible: bool = False
    records: Path | None = None
    fresh: bool = False
    limits: LabLimits | None = None


def grade_notebook(
    notebook: NotebookNode, lab: Lab, student: str, options: Options, on_test: OnTest | None = None
) -> Record:
    """Grade one notebook; a notebook that is not of this lab becomes a failed record, never an exception.

    Raises:
        MachineFault, OSError, MemoryError: the machine or the course is at fault, and the submission has no points yet.
    """
    report = Report()
    started = time.perf_counter()
    try:
        execute(notebook, lab, options, report, on_test)
    except NotThisLab as error:
        return _failed(student, lab, options, str(error))
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


def _failed(student: str, lab: Lab, options: Options, why: str) -> Record:
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


def grade_class(
    folder: Path,
    lab: Lab,
    options: Options,
    on_record: Callable[[Record, bool], None] = lambda record, resumed: None,
) -> ClassReport:
    """Grade every submission below `folder`, `options.jobs` at a time. Calls `on_record` for each as it is done.

    An interrupted run continues where it stopped: a submission is not executed again if its record was kept and nothing
    that decides its points has changed since.

    Raises:
        LabError, FileNotFoundError: raised before anybody is graded, as `submissions.find` does.
        MachineFault: the machine or the course is at fault. Finished records are kept.
        OSError: a record could not be written.
    """
    handed_in = submissions.find(folder, lab)
    decides = fingerprint(lab, options.limits, options.sandbox, options.only, options.visible)
    done: dict[int, Record] = {}
    with ThreadPoolExecutor(max_workers=options.jobs) as workers:
        futures = {
            workers.submit(_grade_or_resume, s, folder, lab, options, decides): n for n, s in enumerate(handed_in)
        }
        try:
            for future in as_completed(futures):
                record, path, resumed = future.result()
                if path is not None and not resumed:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    replace_text(path, records.to_json(asdict(record)))
                done[futures[future]] = record
                on_record(record, resumed)
        finally:
            workers.shutdown(cancel_futures=True)
    return ClassReport(lab.slug, options.sandbox, [done[n] for n in range(len(handed_in))])


def _grade_or_resume(
    submission: Submission, folder: Path, lab: Lab, options: Options, decides: str
) -> tuple[Record, Path | None, bool]:
    """Return a submission's record, where to keep it (None: nowhere), and whether it came from there.

    Raises a MachineFault that names the student at whom grading stopped.
    """
    try:
        content = submissions.content(submission, folder)
        path = _kept_at(submission.student, content, lab, options, decides)
        if not options.fresh and (earlier := _kept(path)) is not None:
            return earlier, path, True
        record = grade_notebook(submissions.parse(content), lab, submission.student, options)
        return record, path if record.status == "graded" else None, False
    except BadSubmission as error:
        return _failed(submission.student, lab, options, str(error)), None, False
    except LabError:
        raise
    except MachineFault as error:
        raise MachineFault(f"grading stopped at {submission.student}, nobody lost points: {error}") from error
    except Exception as error:
        raise MachineFault(f"grading stopped at {submission.student}, nobody lost points: {cause(error)}") from error


def _kept_at(student: str, content: bytes, lab: Lab, options: Options, decides: str) -> Path | None:
    """Return the path of the record of exactly this submission, graded in exactly this way."""
    if options.records is None:
        return None
    digest = hashlib.sha256(f"{decides}\0{student}\0".encode())
    digest.update(content)
    return options.records / lab.slug / f"{digest.hexdigest()[:32]}.json"


def _kept(path: Path | None) -> Record | None:
    with contextlib.suppress(ValueError):
        if path is not None and path.is_file():
            return Record.from_dict(json.loads(path.read_text(encoding="utf-8")))
    return None
