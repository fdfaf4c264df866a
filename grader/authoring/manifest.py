"""The trusted description of a lab, and the submission rebuilt from it.

The master notebook decides which cells exist, their order, kind, points and locked text. A submission contributes the
text of its solution cells (the first of each grade_id) and its own extra cells, as plain code for the student's side.
Whatever else it says about itself — tags, locks, points, test cells — is not read.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import nbformat
from nbformat import NotebookNode

from grader.authoring.labs import KERNELSPEC, Lab, LabError, grade_id
from grader.authoring.names import bound
from grader.authoring.regions import without

UNANSWERED = "YOUR ANSWER HERE"
"""What nbgrader's ClearSolutions leaves of a written answer."""

MAX_CELLS, MAX_FREE_CELLS = 1000, 200
MAX_CELL_TEXT = 50_000
"""Characters of one of the student's cells; the longest reference answer of the labs has a fifth of it."""
MAX_TEXT = 500_000
"""Characters of all of the student's cells."""


class Kind(StrEnum):
    SETUP = "setup"
    SOLUTION = "solution"
    TEST = "test"
    REFLECTION = "reflection"
    DEMO = "demo"
    PROSE = "prose"
    FREE = "free"


@dataclass(frozen=True)
class Exercise:
    """A solution cell and its test cell. `id` is the solution's grade_id: what `--only` and `wrong/` call it."""

    id: str
    test: str
    points: float


@dataclass(frozen=True)
class Manifest:
    """A lab as the grader trusts it."""

    lab: Lab
    master: NotebookNode
    kinds: dict[str, Kind]
    exercises: tuple[Exercise, ...]
    exports: tuple[str, ...]
    """Top-level names that solution cells define: the only names a test may fetch from the student's side."""
    visible: bool = False
    """Without hidden tests."""

    @property
    def max_score(self) -> float:
        return sum(e.points for e in self.exercises)

    def exercise(self, name: str) -> Exercise:
        """Raises LabError listing the exercises where there is none of that name."""
        for exercise in self.exercises:
            if name in (exercise.id, exercise.test):
                return exercise
        known = ", ".join(e.id for e in self.exercises)
        raise LabError(f"lab {self.lab.slug} has no exercise {name!r}; its exercises are {known}")

    def kind(self, cell: NotebookNode) -> Kind:
        return self.kinds.get(cell.get("id", ""), Kind.FREE)


@dataclass
class Rebuilt:
    """A submission in the master's shape, and what had to be restored."""

    notebook: NotebookNode
    notes: list[str]
    reflection: str


class NotThisLab(Exception):
    """The file is a notebook, but not a submission of this lab."""


def manifest(lab: Lab, *, visible: bool = False) -> Manifest:
    """The manifest of a lab, read from its source; read once for each version of the source.

    `visible` leaves out the hidden tests: what a student can check alone.
    """
    return _manifest(lab, lab.source.stat().st_mtime_ns, visible)


@cache
def _manifest(lab: Lab, _modified: int, visible: bool) -> Manifest:
    master = lab.master()
    if visible:
        for cell in master.cells:
            cell.source = without(cell.source, "HIDDEN TESTS")
    kinds = {cell.id: _kind(cell) for cell in master.cells}
    tests = [c for c in master.cells if kinds[c.id] is Kind.TEST]
    exercises = tuple(Exercise(c.id.removesuffix("_test"), c.id, float(c.metadata.nbgrader.points)) for c in tests)
    for exercise in exercises:
        if kinds.get(exercise.id) is not Kind.SOLUTION:
            raise LabError(f"lab {lab.slug}: test cell {exercise.test} has no solution cell {exercise.id}")
    exports = sorted({n for c in master.cells if kinds[c.id] is Kind.SOLUTION for n in bound(c.source, imports=False)})
    return Manifest(lab, master, kinds, exercises, tuple(exports), visible)


def _kind(cell: NotebookNode) -> Kind:
    meta = cell.metadata.get("nbgrader", {})
    tags = cell.metadata.get("tags", [])
    if cell.cell_type != "code":
        return Kind.REFLECTION if meta.get("solution") else Kind.PROSE
    if meta.get("solution"):
        return Kind.SOLUTION
    if meta.get("grade"):
        return Kind.TEST
    return Kind.SETUP if "setup" in tags else Kind.DEMO


def rebuild(submission: Any, trusted: Manifest) -> Rebuilt:
    """The submission in the master's shape. Idempotent; the submission is not changed.

    Raises:
        NotThisLab: it holds no cell of this lab, or is no notebook at all.
    """
    cells = submission.get("cells") if isinstance(submission, dict) else None
    if not isinstance(cells, list):
        raise NotThisLab("the file holds no cells: it is not a version 4 notebook; save it again in JupyterLab")
    cells = [c for c in cells if isinstance(c, dict)]
    if not cells:
        raise NotThisLab("the notebook is empty; submit the notebook that `threeloops start` made")
    if len(cells) > MAX_CELLS:
        raise NotThisLab(f"{len(cells):,} cells; at most {MAX_CELLS:,} are read: delete some and submit again")
    answers, extra, notes = _sort(cells, trusted)
    if not answers:
        raise NotThisLab(_belongs_elsewhere(submission, trusted))
    out = [*extra.get(None, [])]
    for cell in copy.deepcopy(trusted.master.cells):
        if trusted.kinds[cell.id] in (Kind.SOLUTION, Kind.REFLECTION):
            given = answers.get(cell.id)
            cell.source = _within(_text(given), cell.id, cell.cell_type, notes) if given is not None else ""
            if given is None and trusted.kinds[cell.id] is Kind.SOLUTION:
                notes.append(f"{cell.id}: the answer's cell is missing from the submission")
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        out += [cell, *extra.get(cell.id, [])]
    notebook = nbformat.v4.new_notebook(cells=out, metadata=_metadata(trusted))
    length = sum(len(c.source) for c in out if trusted.kind(c) in (Kind.SOLUTION, Kind.REFLECTION, Kind.FREE))
    if length > MAX_TEXT:
        raise NotThisLab(
            f"the answers and your own cells have {length:,} characters; at most {MAX_TEXT:,} are read: "
            "delete or shorten some and submit again"
        )
    written = next((_text(answers[i]) for i, k in trusted.kinds.items() if k is Kind.REFLECTION and i in answers), "")
    unanswered = written.strip() in ("", UNANSWERED)
    return Rebuilt(notebook, notes, "incomplete" if unanswered else "complete")


def _sort(
    cells: list[dict[str, Any]], trusted: Manifest
) -> tuple[dict[str, Any], dict[str | None, list[Any]], list[str]]:
    """Which submitted cell answers which master cell, which are the student's own and where, and what was off."""
    masters = {c.id: c for c in trusted.master.cells}
    demos = {c.source.strip() for c in trusted.master.cells if trusted.kinds[c.id] is Kind.DEMO}
    answers: dict[str, Any] = {}
    extra: dict[str | None, list[Any]] = {}
    seen: Counter[str] = Counter()
    last: str | None = None
    notes: list[str] = []
    for cell in cells:
        name = grade_id(cell) or cell.get("id")
        name = name if isinstance(name, str) else None
        kind = trusted.kinds.get(name or "")
        if kind is None or kind is Kind.FREE:
            if _text(cell).strip() and _text(cell).strip() not in demos:
                extra.setdefault(last, []).append(_free(cell, sum(map(len, extra.values())), notes))
            continue
        assert name is not None
        last = name
        seen[name] += 1
        if kind in (Kind.SOLUTION, Kind.REFLECTION):
            if name not in answers:
                answers[name] = cell
            else:
                notes.append(f"{name}: a second cell with this name was ignored; the first one counts")
        if kind in (Kind.SOLUTION, Kind.TEST, Kind.SETUP, Kind.REFLECTION):
            notes += _differences(name, kind, cell, masters[name])
    for name, kind in trusted.kinds.items():
        if kind in (Kind.TEST, Kind.SETUP) and not seen[name]:
            notes.append(f"{name}: this {kind.value} cell was missing and was restored from the lab")
        if kind is Kind.TEST and seen[name] > 1:
            notes.append(f"{name}: {seen[name]} cells with this name; the lab's own was used")
    if sum(map(len, extra.values())) > MAX_FREE_CELLS:
        raise NotThisLab(f"more than {MAX_FREE_CELLS} extra cells; merge or delete some and submit again")
    return answers, extra, notes


def _differences(name: str, kind: Kind, cell: dict[str, Any], master: NotebookNode) -> list[str]:
    """What the submission changed about a cell that is not the student's to change."""
    notes = []
    if cell.get("cell_type") != master.cell_type:
        notes.append(
            f"{name}: its type was changed to {str(cell.get('cell_type'))[:20]!r}; it counts as {master.cell_type}"
        )
    text = _text(cell).strip()
    if kind in (Kind.TEST, Kind.SETUP) and text not in (
        master.source.strip(),
        without(master.source, "HIDDEN TESTS").strip(),
    ):
        notes.append(f"{name}: the text of this {kind.value} cell was edited; the lab's own was used")
    meta = cell.get("metadata", {})
    given = meta.get("nbgrader") if isinstance(meta, dict) else None
    own = master.metadata.get("nbgrader", {})
    given = given if isinstance(given, dict) else {}
    changed = [k for k in ("grade", "solution", "locked", "points") if k in own and k in given and given[k] != own[k]]
    if changed or (grade_id(cell) is None):
        what = ", ".join(changed) or "its nbgrader metadata is gone"
        notes.append(f"{name}: the cell's grading metadata was changed ({what}); the lab's own was used")
    tags = meta.get("tags", []) if isinstance(meta, dict) else []
    if tags != master.metadata.get("tags", []):
        notes.append(f"{name}: the cell's tags were changed; the lab's own were used")
    return notes


def _free(cell: dict[str, Any], number: int, notes: list[str]) -> NotebookNode:
    """One of the student's own cells, stripped of everything but its text."""
    kind = "markdown" if cell.get("cell_type") in ("markdown", "raw") else "code"
    make = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
    return make(_within(_text(cell), f"your own cell {number + 1}", kind, notes), id=f"free-{number}")


def _within(text: str, name: str, kind: str, notes: list[str]) -> str:
    """The text of a student's cell; of one that is too long only the message that says so."""
    if len(text) <= MAX_CELL_TEXT:
        return text
    said = (
        f"{name}: the cell has {len(text):,} characters; at most {MAX_CELL_TEXT:,} are read: "
        "shorten it or split it and submit again"
    )
    notes.append(said)
    return f"# {said}" if kind == "code" else said


def _text(cell: dict[str, Any]) -> str:
    source = cell.get("source", "")
    if isinstance(source, list):
        source = "".join(s for s in source if isinstance(s, str))
    # A JSON string may hold half a character (an escaped surrogate), which no file and no interpreter takes.
    return source.encode("utf-8", "replace").decode() if isinstance(source, str) else ""


def _metadata(trusted: Manifest) -> dict[str, Any]:
    return {"kernelspec": dict(KERNELSPEC), "threeloops": {"lab": trusted.lab.slug}}


def _belongs_elsewhere(submission: Any, trusted: Manifest) -> str:
    meta = submission.get("metadata", {})
    own = meta.get("threeloops", {}) if isinstance(meta, dict) else {}
    claimed = own.get("lab") if isinstance(own, dict) else None
    if isinstance(claimed, str) and claimed != trusted.lab.slug:
        return f"this is the notebook of lab {claimed[:60]!r}, not of {trusted.lab.slug!r}; submit the other file"
    return (
        f"it holds no answer cell of lab {trusted.lab.slug}; start again from `threeloops start {trusted.lab.number}`"
    )
