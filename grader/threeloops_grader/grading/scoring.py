"""Execute a notebook through the wall, and write one result into each test cell.

`threeloops grade`, `nbgrader autograde` and papermill's engine `walled` all use it. The lab is an argument and never
read from the notebook. This module does not import torch: the processes of the pool do the heavy work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nbformat import NotebookNode
from nbformat.v4 import new_notebook, new_output

from threeloops_grader.authoring.labs import Lab, LabLimits
from threeloops_grader.authoring.manifest import SETUPS, Kind, Manifest, manifest, split_test_id
from threeloops_grader.authoring.regions import first_line, without
from threeloops_grader.grading.output_limits import Allowance
from threeloops_grader.grading.records import Test
from threeloops_grader.grading.redaction import Redactor, reaches
from threeloops_grader.grading.session import Session
from threeloops_grader.machine.faults import MachineFault
from threeloops_grader.sandbox.pool import choose, pool
from threeloops_grader.submissions.answer_cells import answer_of
from threeloops_grader.submissions.rebuild import rebuild
from threeloops_grader.wall.outcome import Outcome

if TYPE_CHECKING:
    from papermill.engines import NotebookExecutionManager

__all__ = ["OnTest", "Report", "outputs", "prepare", "run", "start_processes"]

_RESULT = "application/vnd.threeloops.result+json"
_MAX_VERDICT = 8000
_NOTED = (Kind.SOLUTION, *SETUPS)
"""Kinds of cells whose failures become notes."""
OnTest = Callable[[Test], None]


@dataclass
class Report:
    """The results of a run. papermill's engine fills the one that is passed as its argument `report`."""

    tests: list[Test] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """Those of the notes that say how a cell failed, by cell."""
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


def start_processes(lab: Lab, sandbox: str, *, visible: bool) -> None:
    """Start the warm processes that `run` needs for a lab, unless they run already. Takes seconds the first time."""
    pool(manifest(lab, visible=visible).lab, choose(sandbox), withhold=not visible)


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
    `report`. `watcher` is papermill's manager of the same notebook, which notes when each cell ran.

    Once a hidden test has run, messages of the student's code are redacted. If a test then fails in its visible part,
    the notebook runs again without hidden tests, in fresh processes, and what it says there is shown in full.
    """
    chosen = choose(sandbox)
    processes = pool(trusted.lab, chosen, withhold=not trusted.visible)
    allowance = Allowance()
    cells = _select(report.notebook.cells, trusted, only)
    with Session(trusted, processes, limits, jobs) as session:
        first = _Pass(session, Redactor.of(trusted))
        for at, cell in cells:
            if watcher:
                watcher.cell_start(cell, at)
            outcome = allowance.spend(first.run(cell))
            cell.execution_count = at + 1
            _note(report, cell, trusted.kind(cell), outcome)
            if on_test and trusted.kind(cell) is Kind.TEST:
                on_test(report.tests[-1])
            if watcher:
                if not outcome.ok:
                    watcher.cell_exception(cell, at)
                watcher.cell_complete(cell, at)
    # Without a sandbox, files could tell the second run what the first has seen.
    if first.withheld and chosen != "none":
        with Session(trusted, processes, limits, jobs) as again:
            again.deadline = session.deadline
            for cell, outcome in _visible_failures(again, [cell for _, cell in cells], first.withheld):
                _note(report, cell, trusted.kind(cell), allowance.spend(outcome))
    report.notes += allowance.notes


class _Pass:
    """One execution of the cells. `withheld` are the ids of cells whose messages were cut because of hidden tests that
    ran before, although they failed for a reason that the student may know."""

    def __init__(self, session: Session, redactor: Redactor) -> None:
        self.session = session
        self.redactor = redactor
        self.withheld: set[str] = set()
        self._failed: dict[str, Outcome] = {}
        """Answers whose cells failed."""

    def run(self, cell: NotebookNode) -> Outcome:
        """Execute one cell. Return its outcome as its student may read it."""
        kind = self.session.manifest.kind(cell)
        hidden_from = first_line(cell.source, "HIDDEN TESTS") if kind is Kind.TEST else None
        outcome = self.session.run(cell)
        shown = self.redactor.redact(outcome, hidden_from, of_lab=kind is not Kind.FREE)
        answer = split_test_id(cell.id)[0]
        is_visible = not shown.ok and (hidden_from is None or not reaches(outcome, hidden_from))
        if is_visible and kind is not Kind.FREE and not outcome.dead and shown.reason != outcome.reason:
            self.withheld.add(cell.id)
        if kind is Kind.TEST:
            if answer in self.withheld:
                self.withheld.add(cell.id)
            return _explained(shown, self._failed.get(answer))
        if not shown.ok and (kind in _NOTED or answer_of(cell.id)):
            self._failed.setdefault(answer_of(cell.id) or cell.id, shown)
        return shown


def _visible_failures(
    session: Session, cells: list[NotebookNode], withheld: set[str]
) -> Iterator[tuple[NotebookNode, Outcome]]:
    """Run the notebook without hidden tests, and of the tests only those that were withheld. Yield the withheld cells
    that fail again."""
    run = _Pass(session, Redactor())
    last = max(at for at, cell in enumerate(cells) if cell.id in withheld)
    with suppress(MachineFault):  # the points are known already
        for cell in cells[: last + 1]:
            is_test = session.manifest.kind(cell) is Kind.TEST
            if is_test and cell.id not in withheld:
                continue
            visible = without(cell.source, "HIDDEN TESTS") if is_test else cell.source
            outcome = run.run(NotebookNode({**cell, "source": visible}))
            if outcome.dead:
                return
            if cell.id in withheld and not outcome.ok:
                yield cell, outcome


def _note(report: Report, cell: NotebookNode, kind: Kind, outcome: Outcome) -> None:
    """Write the outcome of a cell into its outputs and into the report. It replaces that of an earlier run."""
    maximum = float(cell.metadata.nbgrader.points) if kind is Kind.TEST else 0.0
    cell.outputs = outputs(outcome, maximum, cell.execution_count, is_test=kind is Kind.TEST)
    if kind is Kind.TEST:
        text = outcome.printed.strip() if outcome.ok else outcome.reason
        hidden_from = first_line(cell.source, "HIDDEN TESTS")
        late = not outcome.ok and hidden_from is not None and (outcome.line or 0) > hidden_from
        test = Test(cell.id, _points(outcome, maximum), maximum, text[:_MAX_VERDICT], late)
        names = [earlier.name for earlier in report.tests]
        if cell.id in names:
            report.tests[names.index(cell.id)] = test
        else:
            report.tests.append(test)
    elif not outcome.ok and (kind in _NOTED or answer_of(cell.id)):
        earlier = report.failures.get(cell.id)
        report.failures[cell.id] = f"{cell.id}: {outcome.reason}"
        report.notes[:] = [*(note for note in report.notes if note != earlier), report.failures[cell.id]]


def _explained(outcome: Outcome, answer: Outcome | None) -> Outcome:
    """Return the outcome of a test. If a name is missing because the answer's cell failed, say how the cell failed."""
    if answer is None or outcome.ok or outcome.quoted is not None or "is not defined" not in outcome.message:
        return outcome
    message = f"the cell of the answer failed: {answer.reason}"
    return replace(outcome, error="NoAnswer", message=message, title="", lines=[], where="")


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
        shown.append(
            new_output("error", ename=outcome.error or "Error", evalue=outcome.message, traceback=[outcome.reason])
        )
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
