"""Rebuild a submission from the lab's master notebook.

The master notebook decides which cells exist, their order, kind, points and locked text. A submission contributes the
text of its solution cells (the first of each grade_id) and its own extra cells, as plain code for the student's side.
Its tags, locks, points and test cells are only compared, so that the student can be told what was restored.
"""

import copy
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import nbformat
from nbformat import NotebookNode

from threeloops_grader.authoring.labs import GOES_ON, KERNELSPEC, grade_id
from threeloops_grader.authoring.manifest import SETUPS, Kind, Manifest
from threeloops_grader.authoring.regions import without
from threeloops_grader.submissions.submitted import NotThisLab, essentials

__all__ = ["Rebuilt", "rebuild"]

_UNANSWERED = "YOUR ANSWER HERE"
"""The text that nbgrader's ClearSolutions leaves in a written answer."""

_OF_LAB = (Kind.TEST, *SETUPS)
_MAX_FREE_CELLS = 200
_MAX_CELL_TEXT = 50_000
"""Characters of one of the student's cells; the longest reference answer of the labs has a fifth of that."""
_MAX_TEXT = 500_000
"""Characters of all of the student's cells."""


@dataclass
class Rebuilt:
    """A submission in the master's shape, and the list of restored parts."""

    notebook: NotebookNode
    notes: list[str]
    reflection: str


def rebuild(submission: Any, trusted: Manifest) -> Rebuilt:
    """Return the submission in the master's shape. It is idempotent, and does not change the submission.

    Raises:
        NotThisLab: it holds no cell of this lab, or is not a notebook at all.
    """
    notebook = essentials(submission)
    if (cells := notebook.get("cells")) is None:
        raise NotThisLab("the file holds no cells: it is not a version 4 notebook; save it again in JupyterLab")
    if not cells:
        raise NotThisLab("the notebook is empty; submit the notebook that `threeloops start` made")
    answers, extra, notes = _sort(cells, trusted)
    if not answers:
        raise NotThisLab(_belongs_elsewhere(notebook, trusted))
    reflection = "incomplete"
    out = [*extra[None]]
    for cell in copy.deepcopy(trusted.master.cells):
        kind = trusted.kinds[cell.id]
        if kind in (Kind.SOLUTION, Kind.REFLECTION):
            given = answers.get(cell.id)
            if given is None and kind is Kind.SOLUTION:
                notes.append(f"{cell.id}: the answer's cell is missing from the submission")
            if kind is Kind.REFLECTION and (given or "").strip() not in ("", _UNANSWERED):
                reflection = "complete"
            cell.source = _within(given or "", cell.id, cell.cell_type, notes)
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
        out += [cell, *extra[cell.id]]
    length = sum(len(c.source) for c in out if trusted.kind(c) in (Kind.SOLUTION, Kind.REFLECTION, Kind.FREE))
    if length > _MAX_TEXT:
        raise NotThisLab(
            f"the answers and your own cells have {length:,} characters; at most {_MAX_TEXT:,} are read: "
            "delete or shorten some and submit again"
        )
    metadata = {"kernelspec": dict(KERNELSPEC), "threeloops": {"lab": trusted.lab.slug}}
    return Rebuilt(nbformat.v4.new_notebook(cells=out, metadata=metadata), notes, reflection)


def _sort(
    cells: list[dict[str, Any]], trusted: Manifest
) -> tuple[dict[str, str], dict[str | None, list[NotebookNode]], list[str]]:
    """Return the answers by name, the student's own cells by the name of the lab's cell before them, and notes."""
    masters = {c.id: c for c in trusted.master.cells}
    demos = {c.source.strip() for c in masters.values() if trusted.kinds[c.id] is Kind.DEMO}
    answers: dict[str, str] = {}
    extra: dict[str | None, list[NotebookNode]] = defaultdict(list)
    own_cells = 0
    seen: Counter[str] = Counter()
    last: str | None = None
    notes: list[str] = []
    for cell in cells:
        name = grade_id(cell) or cell.get("id", "")
        text = cell.get("source", "")
        kind = trusted.kinds.get(name)
        if kind is None:
            if text.strip() and text.strip() not in demos:
                own_cells += 1
                extra[last].append(_own_cell(cell, own_cells, notes))
            continue
        last = name
        seen[name] += 1
        if kind in (Kind.SOLUTION, Kind.REFLECTION):
            if seen[name] == 1:
                answers[name] = text
            else:
                notes.append(f"{name}: a second cell with this name was ignored; the first one counts")
        if kind in (Kind.SOLUTION, Kind.REFLECTION, *_OF_LAB):
            notes += _differences(name, kind, cell, masters[name])
    for name, kind in trusted.kinds.items():
        if kind in _OF_LAB and not seen[name]:
            notes.append(f"{name}: this {kind.value} cell was missing and was restored from the lab")
        if kind is Kind.TEST and seen[name] > 1:
            notes.append(f"{name}: {seen[name]} cells with this name; the lab's own was used")
    if own_cells > _MAX_FREE_CELLS:
        raise NotThisLab(f"more than {_MAX_FREE_CELLS} extra cells; merge or delete some and submit again")
    return answers, extra, notes


def _differences(name: str, kind: Kind, cell: dict[str, Any], master: NotebookNode) -> list[str]:
    """Return notes on the submission's changes of a cell that students may not change."""
    notes = []
    if (given_type := cell.get("cell_type")) != master.cell_type:
        notes.append(f"{name}: its type was changed to {str(given_type)[:20]!r}; it counts as {master.cell_type}")
    allowed = [text.strip() for text in (master.source, without(master.source, "HIDDEN TESTS"))]
    if kind in _OF_LAB and cell.get("source", "").strip() not in allowed:
        notes.append(
            f"{name}: this {kind.value} cell is not that of the installed lab (edited, or of another release); "
            "the lab's own was used"
        )
    given = cell["metadata"].get("nbgrader", {})
    own = master.metadata.get("nbgrader", {})
    changed = [k for k in ("grade", "solution", "locked", "points") if k in own and given.get(k, own[k]) != own[k]]
    if changed or grade_id(cell) is None:
        what = ", ".join(changed) or "its nbgrader metadata is gone"
        notes.append(f"{name}: the cell's grading metadata was changed ({what}); the lab's own was used")
    # Release adds one tag. If there is no source, the released notebook is the master.
    given_tags, own_tags = ([t for t in c["metadata"].get("tags", []) if t != GOES_ON] for c in (cell, master))
    if given_tags != own_tags:
        notes.append(f"{name}: the cell's tags were changed; the lab's own were used")
    return notes


def _own_cell(cell: dict[str, Any], number: int, notes: list[str]) -> NotebookNode:
    kind = "markdown" if cell.get("cell_type") in ("markdown", "raw") else "code"
    make = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
    return make(_within(cell["source"], f"your own cell {number}", kind, notes), id=f"free-{number - 1}")


def _within(text: str, name: str, cell_type: str, notes: list[str]) -> str:
    """Return the text of a student's cell. If it is too long, return only a message that says so."""
    if len(text) <= _MAX_CELL_TEXT:
        return text
    notice = (
        f"{name}: the cell has {len(text):,} characters; at most {_MAX_CELL_TEXT:,} are read: "
        "shorten it or split it and submit again"
    )
    notes.append(notice)
    return f"# {notice}" if cell_type == "code" else notice


def _belongs_elsewhere(notebook: dict[str, Any], trusted: Manifest) -> str:
    claimed = notebook["metadata"]["threeloops"].get("lab", trusted.lab.slug)
    if claimed != trusted.lab.slug:
        return f"this is the notebook of lab {claimed[:60]!r}, not of {trusted.lab.slug!r}; submit the other file"
    return (
        f"it holds no answer cell of lab {trusted.lab.slug}; start again from `threeloops start {trusted.lab.number}`"
    )
