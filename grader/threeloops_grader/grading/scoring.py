"""Execute a notebook through the wall, and write one result into each test cell.

`threeloops grade`, `nbgrader autograde` and papermill's engine `walled` all use it. The lab is an argument and never
read from the notebook. This module does not import torch: the processes of the pool do the heavy work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nbformat import NotebookNode
from nbformat.v4 import new_notebook, new_output

from threeloops_grader.authoring.labs import Lab, LabLimits
from threeloops_grader.authoring.manifest import SETUPS, Kind, Manifest, manifest, split_test_id
from threeloops_grader.authoring.regions import first_line
from threeloops_grader.grading.output_limits import Allowance
from threeloops_grader.grading.records import Test
from threeloops_grader.grading.redaction import Redactor
from threeloops_grader.grading.session import Session
from threeloops_grader.sandbox.pool import choose, pool
from threeloops_grader.submissions.rebuild import rebuild
from threeloops_grader.wall.outcome import Outcome

if TYPE_CHECKING:
    from papermill.engines import NotebookExecutionManager

__all__ = ["OnTest", "Report", "outputs", "prepare", "run"]

_RESULT = "application/vnd.threeloops.result+json"
_MAX_VERDICT = 8000
OnTest = Callable[[Test], None]


@dataclass
class Report:
    """The results of a run. papermill's engine fills the one that is passed as its argument `report`."""

    tests: list[Test] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reflection: str = "incomplete"
    notebook: NotebookNode = field(default_factory=new_notebook)


def prepare(notebook: NotebookNode, lab: Lab, report: Report, *, visible: bool) -> Manifest:
    """Rebuild the notebook from the lab's master into `report`; returns the lab's manifest. Raises NotThisLab."""
    trusted = manifest(lab, visible=visible)
    rebuilt = rebuild(notebook, trusted)
    report.notes = rebuilt.notes
    report.reflection = rebuilt.reflection
    report.notebook = rebuilt.notebook
    return trusted


def run(
    trusted: Manifest,
    report: Report,
    *,
    sandbox: str = "auto",
    jobs: int = 1,
    only: str | None = None,
    limits: LabLimits | None = None,
    on_test: OnTest | None = None,
    watcher: NotebookExecutionManager | None = None,
) -> None:
    """Execute the rebuilt notebook of `report` through the wall; outputs go into its cells, verdicts and notes into
    `report`. `watcher` is papermill's manager of the same notebook, which notes when each cell ran."""
    chosen = choose(sandbox)
    redactor = Redactor.of(trusted)
    allowance = Allowance()
    failed: dict[str, Outcome] = {}  # answers whose cells failed
    with Session(trusted, pool(trusted.lab, chosen, withhold=not trusted.visible), limits, jobs) as session:
        for at, cell in _select(report.notebook.cells, trusted, only):
            kind = trusted.kind(cell)
            is_test = kind is Kind.TEST
            if watcher:
                watcher.cell_start(cell, at)
            hidden_from = first_line(cell.source, "HIDDEN TESTS") if is_test else None
            outcome = redactor.redact(session.run(cell), hidden_from, of_lab=kind is not Kind.FREE)
            if is_test:
                outcome = _explained(outcome, failed.get(split_test_id(cell.id)[0]))
            outcome = allowance.spend(outcome)
            maximum = float(cell.metadata.nbgrader.points) if is_test else 0.0
            cell.outputs = outputs(outcome, maximum, at + 1, is_test=is_test)
            cell.execution_count = at + 1
            if is_test:
                text = outcome.printed.strip() if outcome.ok else outcome.reason
                late = not outcome.ok and hidden_from is not None and (outcome.line or 0) > hidden_from
                report.tests.append(Test(cell.id, _points(outcome, maximum), maximum, text[:_MAX_VERDICT], late))
                if on_test:
                    on_test(report.tests[-1])
            elif not outcome.ok and kind in (Kind.SOLUTION, *SETUPS):
                report.notes.append(f"{cell.id}: {outcome.reason}")
                failed[cell.id] = outcome
            if watcher:
                if not outcome.ok:
                    watcher.cell_exception(cell, at)
                watcher.cell_complete(cell, at)
    report.notes += allowance.notes


def _explained(outcome: Outcome, answer: Outcome | None) -> Outcome:
    """Return the outcome of a test. If a name is missing because the answer's cell failed, say how the cell failed."""
    if answer is None or outcome.ok or outcome.quoted is not None or "is not defined" not in outcome.message:
        return outcome
    return replace(outcome, error="NoAnswer", message=f"the cell of the answer failed: {answer.reason}", where="")


def _select(cells: list[NotebookNode], trusted: Manifest, only: str | None = None) -> list[tuple[int, NotebookNode]]:
    """Return the cells to execute, each with its index: all code cells except demonstrations.

    With `only`, return the cells up to the last test of that exercise, without the tests of others. Earlier answers
    stay, because this one may call them.
    """
    exercise = trusted.exercise(only) if only else None
    chosen = []
    for at, cell in enumerate(cells):
        kind = trusted.kind(cell)
        if cell.cell_type != "code" or kind is Kind.DEMO or not cell.source.strip():
            continue
        if exercise is None or kind is not Kind.TEST or cell.id in exercise.tests:
            chosen.append((at, cell))
        if exercise is not None and cell.id == exercise.tests[-1]:
            break
    return chosen


def outputs(outcome: Outcome, maximum: float, count: int, *, is_test: bool) -> list[NotebookNode]:
    """Return a cell's outcome as notebook outputs. The student's outputs are text and pictures only, so no script
    reaches a page."""
    shown = []
    if text := outcome.printed + outcome.student_printed:
        # Never stderr: nbgrader reads any stderr text as a failed test.
        shown.append(new_output("stream", name="stdout", text=text))
    if not is_test:
        shown += [new_output("display_data", data=data) for data in outcome.shown if data]
    if not outcome.ok:
        error = outcome.error or "Error"
        traceback = [f"{error}: {outcome.reason}"]
        shown.append(new_output("error", ename=error, evalue=outcome.message, traceback=traceback))
    elif is_test:
        points = _points(outcome, maximum)
        data = {"text/plain": repr(points), _RESULT: {"score": points, "max_score": maximum}}
        shown.append(new_output("execute_result", data=data, execution_count=count))
    return shown


def _points(outcome: Outcome, maximum: float) -> float:
    """Return the points of a test cell: its own number if it computed one, within [0, maximum]. NaN counts as 0."""
    if not outcome.ok:
        return 0.0
    if outcome.value is None:
        return maximum
    return min(max(outcome.value, 0.0), maximum) if outcome.value == outcome.value else 0.0
