"""Executes a notebook through the wall and writes one result into each test cell.

`papermill`, `threeloops grade` and `nbgrader autograde` all come through here, by papermill's engine `walled`. The lab
is an engine argument, never read from the notebook. Imports no torch: the heavy work is done by the processes behind
the pool.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbformat import NotebookNode
from nbformat.v4 import new_notebook, new_output

from grader.authoring.labs import Lab, Limits, find_lab
from grader.authoring.manifest import Kind, Manifest, manifest, rebuild
from grader.authoring.regions import first_line
from grader.grading.allowance import Allowance
from grader.grading.session import Session
from grader.grading.withheld import Withholding
from grader.sandbox.pool import choose, pool
from grader.wall.outcome import Outcome

if TYPE_CHECKING:
    from papermill.engines import NotebookExecutionManager

RESULT = "application/vnd.threeloops.result+json"


@dataclass
class TestResult:
    """The verdict on one test cell."""

    name: str
    score: float
    max_score: float
    output: str
    seconds: float = 0.0
    requests: int = 0


@dataclass
class Report:
    """What an engine run found; pass one as the engine argument `report` to receive it.

    `trusted`: the lab from which `notebook` was rebuilt; None as long as it was not.
    """

    tests: list[TestResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reflection: str = "incomplete"
    notebook: NotebookNode = field(default_factory=new_notebook)
    trusted: Manifest | None = None


def prepare(notebook: NotebookNode, lab: Lab | str | None, report: Report, *, visible: bool) -> None:
    """Rebuild the notebook from the lab's master into `report.notebook`. Raises NotThisLab."""
    name = lab or os.environ.get("THREELOOPS_LAB")
    if not name:
        raise ValueError("the walled engine needs to know the lab: pass lab='01' or set THREELOOPS_LAB")
    trusted = manifest(name if isinstance(name, Lab) else find_lab(name), visible=visible)
    rebuilt = rebuild(notebook, trusted)
    if "papermill" in (kept := notebook.get("metadata", {})):  # what papermill itself noted before it came here
        rebuilt.notebook.metadata.papermill = kept["papermill"]
    report.notes, report.reflection, report.notebook = rebuilt.notes, rebuilt.reflection, rebuilt.notebook
    report.trusted = trusted


def run(
    nb_man: NotebookExecutionManager,
    report: Report,
    *,
    sandbox: str,
    jobs: int,
    only: str | None,
    limits: Limits | None,
    on_test: Callable[[TestResult], None] | None,
) -> None:
    """Execute a rebuilt notebook through the wall; outputs go into its cells, verdicts and notes into `report`."""
    trusted = report.trusted
    assert trusted is not None
    chosen, withholding, allowance = choose(sandbox), Withholding.of(trusted), Allowance()  # type: ignore[arg-type]
    index = {cell.id: i for i, cell in enumerate(nb_man.nb.cells)}

    def start(cell: NotebookNode) -> None:
        nb_man.cell_start(cell, index[cell.id])

    def end(cell: NotebookNode, outcome: Outcome) -> None:
        is_test = trusted.kind(cell) is Kind.TEST
        hidden_from = first_line(cell.source, "HIDDEN TESTS") if is_test else None
        outcome = withholding.public(outcome, hidden_from, of_lab=trusted.kind(cell) is not Kind.FREE)
        outcome = allowance.spend(outcome)
        write_outputs(cell, outcome, trusted, index[cell.id])
        if is_test:
            report.tests.append(verdict(cell, outcome))
            if on_test:
                on_test(report.tests[-1])
        elif not outcome.ok and trusted.kind(cell) in (Kind.SOLUTION, Kind.SETUP):
            report.notes.append(f"{cell.id}: {outcome.reason}")
        if not outcome.ok:
            nb_man.cell_exception(cell, index[cell.id])
        nb_man.cell_complete(cell, index[cell.id])

    with Session(trusted, pool(trusted.lab, chosen, withhold=not trusted.visible), limits, jobs) as session:
        session.run(select(nb_man.nb.cells, trusted, only), start, end)
    report.notes += allowance.notes


def select(cells: list[NotebookNode], trusted: Manifest, only: str | None) -> list[NotebookNode]:
    """All cells, or just what one exercise needs: setup, the student's own cells, its answer and its test."""
    if only is None:
        return cells
    exercise = trusted.exercise(only)
    wanted = (exercise.id, exercise.test)
    return [c for c in cells if c.id in wanted or trusted.kind(c) in (Kind.SETUP, Kind.FREE)]


def verdict(cell: NotebookNode, outcome: Outcome) -> TestResult:
    maximum = float(cell.metadata.nbgrader.points)
    text = outcome.printed.strip() if outcome.ok else outcome.reason
    return TestResult(
        cell.id, outcome.points(maximum), maximum, text[:8000], round(outcome.seconds, 4), outcome.requests
    )


def write_outputs(cell: NotebookNode, outcome: Outcome, trusted: Manifest, index: int) -> None:
    """Replace a cell's outputs by what happened. Student output is text and pictures only: no scripts reach a page."""
    cell.outputs, cell.execution_count = [], index + 1
    is_test = trusted.kind(cell) is Kind.TEST
    text = outcome.printed + outcome.student_printed
    if text:
        # Never stderr: nbgrader reads any stderr text as a failed test.
        cell.outputs.append(new_output("stream", name="stdout", text=text))
    if not is_test:
        cell.outputs += [new_output("display_data", data=data) for data in outcome.shown if data]
    if not outcome.ok:
        error = outcome.error or "Error"
        cell.outputs.append(
            new_output("error", ename=error, evalue=outcome.message, traceback=[f"{error}: {outcome.reason}"])
        )
    elif is_test:
        maximum = float(cell.metadata.nbgrader.points)
        points = outcome.points(maximum)
        data = {"text/plain": repr(points), RESULT: {"score": points, "max_score": maximum}}
        cell.outputs.append(new_output("execute_result", data=data, execution_count=index + 1))
