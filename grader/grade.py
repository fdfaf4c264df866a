"""Grade a class: every submission through the wall, in parallel, one record each, whatever the others do."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import papermill
from nbformat import NotebookNode
from papermill.engines import papermill_engines
from papermill.exceptions import PapermillExecutionError
from threeloops.files import replace_text

from grader import records, submissions
from grader.engine import Report, TestResult
from grader.labs import Lab, Limits
from grader.manifest import Exercise, Manifest, NotThisLab, manifest, rebuild
from grader.records import ClassReport, Record
from grader.sandbox.bwrap import SandboxError
from grader.sandbox.pool import Sandbox
from grader.submissions import BadSubmission, Submission
from grader.walled import WalledEngine

VERIFIED_ON = "cpu"

papermill_engines.register("walled", WalledEngine)


@dataclass(frozen=True)
class Options:
    """How to grade. `only` is an exercise's name; `visible` leaves out hidden tests and withholds nothing; `records` is
    where finished records are kept for a resumed run."""

    sandbox: Sandbox
    jobs: int = 1
    only: str | None = None
    visible: bool = False
    records: Path | None = None
    limits: Limits | None = None


def grade_notebook(
    notebook: NotebookNode,
    lab: Lab,
    student: str,
    options: Options,
    on_test: Callable[[TestResult], None] | None = None,
) -> Record:
    """Grade one notebook; a notebook that is not of this lab becomes a failed record, never an exception."""
    trusted, report, started = manifest(lab, visible=options.visible), Report(), time.perf_counter()
    try:
        rebuilt = rebuild(notebook, trusted)
    except NotThisLab as error:
        return _record(student, trusted, options, report, "failed", [str(error)], 0.0)
    execute(rebuilt.notebook, lab, options, report, on_test)
    report.reflection = rebuilt.reflection
    notes = list(dict.fromkeys([*rebuilt.notes, *report.notes]))
    return _record(student, trusted, options, report, "graded", notes, time.perf_counter() - started)


def execute(
    notebook: NotebookNode,
    lab: Lab,
    options: Options,
    report: Report,
    on_test: Callable[[TestResult], None] | None = None,
) -> NotebookNode:
    """Execute a notebook with the walled papermill engine; failing cells are results, not exceptions.

    Returns the executed notebook, in the master's shape.
    """
    # A failing cell is a result that the engine has already reported; papermill raises for it all the same.
    with contextlib.suppress(PapermillExecutionError):
        papermill.execute_notebook(
            notebook,
            None,
            engine_name="walled",
            kernel_name="python3",
            language="python",
            progress_bar=False,
            lab=lab,
            sandbox=options.sandbox,
            jobs=options.jobs,
            only=options.only,
            visible=options.visible,
            limits=options.limits,
            report=report,
            on_test=on_test,
        )
    return report.notebook


def _record(
    student: str, trusted: Manifest, options: Options, report: Report, status: Any, notes: list[str], seconds: float
) -> Record:
    by_name = {t.name: t for t in report.tests}
    wanted: tuple[Exercise, ...] = (trusted.exercise(options.only),) if options.only else trusted.exercises
    missing = "not graded: the submission failed before this test" if status == "failed" else "this test was not run"
    results = [by_name.get(e.test) or TestResult(e.test, 0.0, e.points, missing) for e in wanted]
    return Record(
        student=student,
        score=sum(t.score for t in results),
        max_score=sum(t.max_score for t in results),
        status=status,
        seconds=round(seconds, 3),
        verified_on=VERIFIED_ON,
        reflection="complete" if report.reflection == "complete" else "incomplete",
        notes=notes,
        tests=records.as_tests(results),
    )


def grade_submission(submission: Submission, folder: Path, lab: Lab, options: Options) -> Record:
    """Grade one submitted file, or say in its record why that was not possible."""
    try:
        notebook = submissions.read(submission, folder)
        return grade_notebook(notebook, lab, submission.student, options)
    except SandboxError:
        raise
    except BadSubmission as error:
        reason = str(error)
    except Exception as error:
        reason = f"the grader failed on this submission ({type(error).__name__}: {error}); please report it"
    return _record(submission.student, manifest(lab), options, Report(), "failed", [reason], 0.0)


def grade_class(
    folder: Path,
    lab: Lab,
    options: Options,
    on_record: Callable[[Record, bool], None] = lambda record, resumed: None,
) -> ClassReport:
    """Grade every submission below `folder`, `options.jobs` at a time; `on_record` hears of each as it is done.

    A run that was cut off goes on where it stopped: a submission whose text, lab and options are unchanged since its
    record was written is not executed again.
    """
    found = submissions.find(folder, lab)
    done: dict[str, Record] = {}
    todo: list[tuple[Submission, Path | None]] = []
    for submission in found:
        kept = _kept_at(submission, folder, lab, options)
        record = _kept(kept)
        if record is not None:
            done[submission.student] = record
            on_record(record, True)
        else:
            todo.append((submission, kept))
    for record in _graded(todo, folder, lab, options):
        done[record.student] = record
        on_record(record, False)
    return ClassReport(lab.slug, options.sandbox, [done[s.student] for s in found])


def _graded(todo: list[tuple[Submission, Path | None]], folder: Path, lab: Lab, options: Options) -> Iterator[Record]:
    """Records in the order in which they are done; each is on disk before it is reported."""
    with ThreadPoolExecutor(max_workers=options.jobs) as workers:
        futures = {workers.submit(grade_submission, s, folder, lab, options): kept for s, kept in todo}
        try:
            for future in as_completed(futures):
                record, kept = future.result(), futures[future]
                if kept is not None:
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    replace_text(kept, records.to_json(asdict(record)))
                yield record
        finally:
            workers.shutdown(cancel_futures=True)


def _kept_at(submission: Submission, folder: Path, lab: Lab, options: Options) -> Path | None:
    """Where the record of exactly this submission, lab and set of options is kept."""
    if options.records is None:
        return None
    digest = hashlib.sha256(lab.source.read_bytes())
    try:
        digest.update(submissions.content(submission, folder))
    except (BadSubmission, OSError) as error:
        digest.update(str(error).encode())
    digest.update(repr((submission.student, replace(options, records=None, jobs=0))).encode())
    return options.records / lab.slug / f"{digest.hexdigest()[:32]}.json"


def _kept(path: Path | None) -> Record | None:
    if path is None or not path.is_file():
        return None
    try:
        return Record.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError):
        return None
