"""Rebuild a submission from the lab's master notebook.

The master notebook decides which cells exist, their order, kind, points and locked text. A submission contributes the
text of its solution cells and its own extra cells, as plain code for the student's side. `answer_cells` decides which
cells count as an answer if several have its name. The submission's tags, locks, points and test cells are only
compared, so that the student can be told what was restored. A further copy of a cell of the lab is not run, but stays
visible as text.
"""

import copy
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import nbformat
from nbformat import NotebookNode

from threeloops_grader.authoring.labs import GOES_ON, KERNELSPEC, grade_id
from threeloops_grader.authoring.manifest import SETUPS, Kind, Manifest
from threeloops_grader.authoring.regions import without
from threeloops_grader.submissions.answer_cells import AnswerCells, answer_cells, answer_of
from threeloops_grader.submissions.submitted import REBUILT, NotThisLab, essentials

__all__ = ["Rebuilt", "rebuild"]

_UNANSWERED = "YOUR ANSWER HERE"
"""The text that nbgrader's ClearSolutions leaves in a written answer."""

_OF_LAB = (Kind.TEST, *SETUPS)
_WRITTEN = (Kind.SOLUTION, Kind.REFLECTION)
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
    names = [grade_id(cell) or cell.get("id", "") for cell in cells]
    if not any(trusted.kinds.get(name) in _WRITTEN for name in names):
        raise NotThisLab(_belongs_elsewhere(notebook, trusted))
    is_rebuilt = notebook["metadata"]["threeloops"].get(REBUILT) == REBUILT
    work = _sort(cells, names, trusted, answer_cells(cells, names, trusted, is_rebuilt=is_rebuilt))
    reflection = "incomplete"
    notes = work.notes
    out = [*work.extra[None]]
    for cell in copy.deepcopy(trusted.master.cells):
        kind = trusted.kinds[cell.id]
        if kind in _WRITTEN:
            given = work.written.get(cell.id)
            if given is None and kind is Kind.SOLUTION:
                notes.append(f"{cell.id}: the answer's cell is missing from the submission")
            if kind is Kind.REFLECTION and (given or "").strip() not in ("", _UNANSWERED):
                reflection = "complete"
            cell.source = _within(given or "", cell.id, cell.cell_type, notes)
        if cell.cell_type == "code":
            cell.outputs = []
            cell.execution_count = None
        out += [cell, *work.extra[cell.id]]
    _number(out)
    length = sum(len(c.source) for c in out if trusted.kind(c) in (*_WRITTEN, Kind.FREE))
    if length > _MAX_TEXT:
        raise NotThisLab(
            f"the answers and your own cells have {length:,} characters; at most {_MAX_TEXT:,} are read: "
            "delete or shorten some and submit again"
        )
    metadata = {"kernelspec": dict(KERNELSPEC), "threeloops": {"lab": trusted.lab.slug, REBUILT: REBUILT}}
    return Rebuilt(nbformat.v4.new_notebook(cells=out, metadata=metadata), notes, reflection)


class _Work:
    """The student's part of a notebook: the texts of answers by name, and own cells by the name of the lab's cell
    before them."""

    def __init__(self) -> None:
        self.written: dict[str, str] = {}
        self.extra: dict[str | None, list[NotebookNode]] = defaultdict(list)
        self.notes: list[str] = []
        self._own_cells = 0

    def add(self, after: str | None, cell: dict[str, Any]) -> None:
        """Add a cell of the student's own, unless it is empty."""
        if cell.get("source", "").strip():
            self._count()
            self.extra[after].append(_own_cell(cell, f"your own cell {self._own_cells}", self.notes))

    def add_part(self, after: str, answer: str, text: str) -> None:
        """Add a further part of an answer, unless it is empty."""
        if text.strip():
            self._count()
            cell = _own_cell({"source": text}, f"{answer}, a further part", self.notes)
            cell.id = f"{answer}-part-0"
            self.extra[after].append(cell)

    def show(self, after: str | None, text: str, *, first: bool = False) -> None:
        """Add a text that stands in the notebook and is not run."""
        self._count()
        cell = _own_cell({"cell_type": "markdown", "source": text}, "a cell that was not run", [])
        self.extra[after].insert(0 if first else len(self.extra[after]), cell)

    def _count(self) -> None:
        self._own_cells += 1
        if self._own_cells > _MAX_FREE_CELLS:
            raise NotThisLab(f"more than {_MAX_FREE_CELLS} extra cells; merge or delete some and submit again")


def _sort(cells: list[dict[str, Any]], names: list[str], trusted: Manifest, answers: dict[str, AnswerCells]) -> _Work:
    """Sort the cells of a submission into answers, the student's own cells, and those that are only shown."""
    masters = {c.id: c for c in trusted.master.cells}
    demos = {c.source.strip() for c in masters.values() if trusted.kinds[c.id] is Kind.DEMO}
    joined = {at for answer in answers.values() for at in answer.merged}
    first = {name: min(at for at in answer.merged if names[at] == name) for name, answer in answers.items()}
    reflections: dict[str, list[str]] = defaultdict(list)
    seen: Counter[str] = Counter()
    last: str | None = None
    work = _Work()
    for at, (name, cell) in enumerate(zip(names, cells, strict=True)):
        text = cell.get("source", "")
        kind = trusted.kinds.get(name)
        for answer in (answer for answer, chosen in answers.items() if at in chosen.parts):
            work.add_part(_spot(answer, last, trusted), answer, answers[answer].parts[at])
        if kind is None:
            part_of = answer_of(name)
            if trusted.kinds.get(part_of) is Kind.SOLUTION:
                work.add_part(_spot(part_of, last, trusted), part_of, text)
            elif at not in joined and text.strip() not in demos:
                work.add(last, cell)
            continue
        seen[name] += 1
        if kind is Kind.SOLUTION:
            chosen = answers[name]
            if at in chosen.own or (at in chosen.unused and cell.get("cell_type") != "code"):
                work.add(last, cell)
                continue
            if at in chosen.unused:
                continue
            last = name if at == first[name] else last
        elif seen[name] > 1 and kind in (Kind.DEMO, Kind.PROSE) and text.strip() != masters[name].source.strip():
            work.add(last, cell)
            continue
        else:
            last = name
        if kind is Kind.REFLECTION:
            reflections[name].append(text)
        elif kind in _OF_LAB and seen[name] > 1 and text.strip() not in ("", *_allowed(masters[name])):
            work.show(last, _not_run(name, text))
        if kind in (*_WRITTEN, *_OF_LAB):
            work.notes += _differences(name, kind, cell, masters[name])
    for name, chosen in answers.items():
        work.written[name] = chosen.text
        if chosen.note:
            work.notes.append(chosen.note)
            work.show(name, f"*Grading:* {chosen.note}.", first=True)
    for name, texts in reflections.items():
        work.written[name] = _together(texts)
        if len(texts) > 1:
            work.notes.append(f"{name}: {len(texts)} cells have this name; their texts count together")
    for name, kind in trusted.kinds.items():
        if kind in _OF_LAB and not seen[name]:
            work.notes.append(f"{name}: this {kind.value} cell was missing and was restored from the lab")
        if kind in _OF_LAB and seen[name] > 1:
            work.notes.append(f"{name}: {seen[name]} cells with this name; the lab's own was used")
    return work


def _spot(answer: str, last: str | None, trusted: Manifest) -> str:
    """Return the lab's cell after which a part of an answer runs: where it is, but before the answer's first test."""
    order = list(trusted.kinds)
    tests = [order.index(test) for exercise in trusted.exercises if exercise.id == answer for test in exercise.tests]
    end = min(tests, default=len(order))
    return last if last is not None and order.index(answer) <= order.index(last) < end else answer


def _together(texts: list[str]) -> str:
    """Return the texts of a written answer whose cell was split or copied."""
    written = [text for text in dict.fromkeys(texts) if text.strip() not in ("", _UNANSWERED)]
    return "\n\n".join(written) if written else texts[0]


def _not_run(name: str, text: str) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    why = f"*Grading:* this cell has the name `{name}` as well. It was not run, the lab's own was."
    return f"{why}\n\n{fence}python\n{text}\n{fence}"


def _allowed(master: NotebookNode) -> list[str]:
    return [text.strip() for text in (master.source, without(master.source, "HIDDEN TESTS"))]


def _differences(name: str, kind: Kind, cell: dict[str, Any], master: NotebookNode) -> list[str]:
    """Return notes on the submission's changes of a cell that students may not change."""
    notes = []
    if (given_type := cell.get("cell_type")) != master.cell_type:
        notes.append(f"{name}: its type was changed to {str(given_type)[:20]!r}; it counts as {master.cell_type}")
    if kind in _OF_LAB and cell.get("source", "").strip() not in _allowed(master):
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


def _own_cell(cell: dict[str, Any], name: str, notes: list[str]) -> NotebookNode:
    kind = "markdown" if cell.get("cell_type") in ("markdown", "raw") else "code"
    make = nbformat.v4.new_markdown_cell if kind == "markdown" else nbformat.v4.new_code_cell
    return make(_within(cell["source"], name, kind, notes), id="free-0")


def _number(cells: list[NotebookNode]) -> None:
    """Number the student's own cells, and the further parts of each answer, in the order of the notebook."""
    numbers: Counter[str] = Counter()
    for cell in cells:
        answer = answer_of(cell.id)
        if answer or cell.id == "free-0":
            cell.id = f"{answer}-part-{numbers[answer] + 2}" if answer else f"free-{numbers['']}"
            numbers[answer] += 1


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
