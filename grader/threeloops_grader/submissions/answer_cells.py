"""Decide which cells of a notebook count as an answer, if its student has split, copied, moved or merged cells.

An answer counts as its tests would see it if the notebook ran from top to bottom:

- All cells with the name (grade_id) of an exercise count together, in the order of the notebook. The first is the
  answer's cell, and each further one runs after it as a part of the answer.
- Cells that parse only together become one cell: Split Cell may cut through a function or a text. This also holds for
  a neighbour without a name, because some editors give the name to one of the two halves only.
- A copy after the exercise's last test runs where it is, as a cell of the student's own, if it parses alone.
- A cell that is empty or still as released, and a copy that is no longer code, is not an answer. It is not run.

All of it is the student's own code and gets no rights from its name. Each case is noted with the exercise and the
number of cells.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from threeloops_grader.authoring.manifest import SETUPS, Kind, Manifest
from threeloops_grader.authoring.regions import without
from threeloops_grader.submissions.python_text import MAX_TEXT, parse_alone

__all__ = ["AnswerCells", "answer_cells", "answer_of"]

_MAX_PIECES = 12
"""Cells of one answer that are tried together. Whoever has more gets them one by one."""
_MAX_MIXED = 4
"""Cells for which each border is tried as the end of a line, and as a cut within a line."""
_PART = re.compile(r"(?P<answer>.+)-part-\d+")


@dataclass
class AnswerCells:
    """The cells of one answer, by their positions in the notebook.

    `text` goes into the answer's own cell. `parts` are texts that run after it, at their positions. The cells at
    `merged` are in one of these texts, those at `own` run as the student's own, and those at `unused` are not run.
    """

    text: str
    parts: dict[int, str] = field(default_factory=dict)
    merged: set[int] = field(default_factory=set)
    own: set[int] = field(default_factory=set)
    unused: set[int] = field(default_factory=set)
    note: str = ""


def answer_of(cell_id: str) -> str:
    """Return the answer that a rebuilt cell is a further part of, or "" if it is none."""
    match = _PART.fullmatch(cell_id)
    return match["answer"] if match else ""


def answer_cells(
    cells: Sequence[dict[str, Any]], names: Sequence[str], trusted: Manifest, *, is_rebuilt: bool
) -> dict[str, AnswerCells]:
    """Return the cells of each answer that the notebook holds. `names` has the name of each cell.

    Neighbours without a name stay what they are if the notebook `is_rebuilt`, because they have been looked at.
    """
    own_code = frozenset() if is_rebuilt else _own_code(cells, names, trusted)
    notebook = _Notebook(cells, names, trusted, own_code)
    tests = {exercise.id: exercise.tests for exercise in trusted.exercises}
    answers = {}
    for answer in (name for name, kind in trusted.kinds.items() if kind is Kind.SOLUTION and name in names):
        places = [at for at, name in enumerate(names) if name == answer]
        last_test = max((at for at, name in enumerate(names) if name in tests.get(answer, ())), default=-1)
        answers[answer] = _of_exercise(notebook, answer, places, last_test)
    return answers


class _Group(NamedTuple):
    """Cells that run as one text."""

    cells: list[int]
    text: str
    parses: bool


@dataclass(frozen=True)
class _Notebook:
    cells: Sequence[dict[str, Any]]
    names: Sequence[str]
    trusted: Manifest
    own_code: frozenset[int]
    """Cells of the student's own that hold code."""

    def text(self, at: int) -> str:
        return str(self.cells[at].get("source", ""))

    def is_code(self, at: int) -> bool:
        return self.cells[at].get("cell_type") == "code"

    def divides(self, at: int) -> bool:
        """Return whether what follows this cell runs later than what precedes it, and must stay apart."""
        name = self.names[at]
        return self.trusted.kinds.get(name) in (Kind.SOLUTION, *SETUPS) or bool(answer_of(name))


def _own_code(cells: Sequence[dict[str, Any]], names: Sequence[str], trusted: Manifest) -> frozenset[int]:
    demos = {c.source.strip() for c in trusted.master.cells if trusted.kinds[c.id] is Kind.DEMO}
    return frozenset(
        at
        for at, cell in enumerate(cells)
        if cell.get("cell_type") == "code"
        and names[at] not in trusted.kinds
        and not answer_of(names[at])
        and cell.get("source", "").strip() not in ("", *demos)
    )


def _of_exercise(notebook: _Notebook, name: str, places: list[int], last_test: int) -> AnswerCells:
    code = [at for at in places if notebook.is_code(at)] or places
    stub = without(notebook.trusted.text(name), "SOLUTION").strip()
    written = [at for at in code if notebook.text(at).strip() not in ("", stub)]
    written = [at for n, at in enumerate(written) if not n or notebook.text(at) != notebook.text(written[n - 1])]
    if not written:
        first, *rest = code
        answer = AnswerCells(notebook.text(first), merged={first}, unused={*rest, *places} - {first})
        answer.note = _note(name, places, answer)
        return answer
    before = [at for at in written if at < last_test]
    together = before or written
    if after := [at for at in written if at not in together]:  # the rest of a cell may have been moved there
        whole = parse_alone([notebook.text(at) for at in after])
        together = together + [at for at, is_whole in zip(after, whole, strict=True) if not is_whole]
    own = set(written) - set(together)
    first_group, *further = _groups(notebook, name, together)
    merged = {at for group in (first_group, *further) for at in group.cells}
    unused = set(places) - merged - own
    parts = {group.cells[0]: group.text for group in further}
    answer = AnswerCells(first_group.text, parts, merged, own, unused)
    answer.note = _note(name, places, answer)
    return answer


def _note(name: str, places: Sequence[int], answer: AnswerCells) -> str:
    """Return a sentence on the cells of an answer, or "" if it has its one cell."""
    without_name = len(answer.merged - set(places))
    if len(places) + without_name == 1:
        return ""
    more = f" and {without_name} beside it ha{'s' if without_name == 1 else 've'} none" if without_name else ""
    cells = f"{len(places)} cell{'s have' if len(places) > 1 else ' has'} this answer's name{more}"
    count = len(answer.merged)
    own = len(answer.own)
    unused = len(answer.unused)
    outcomes = [
        f"{count} count together, in the order of the notebook" if count > 1 else "1 counts",
        f"{own} after the tests run{'s' if own == 1 else ''} as your own" if own else "",
        f"{unused} not run (empty, as released, repeated, or not code)" if unused else "",
    ]
    return f"{name}: {cells}, so the cell was split or copied: {', '.join(filter(None, outcomes))}"


def _groups(notebook: _Notebook, name: str, together: list[int]) -> list[_Group]:
    """Return the texts that run as the answer, in order. If cells of the student's own or of other exercises keep apart
    what parses only together, it is put together nevertheless."""
    required = frozenset(together)
    runs = list(_runs(notebook, name, together))
    if runs == [together] and len(together) == 1:
        return [_Group(together, notebook.text(together[0]), True)]  # the usual case: nothing to join it with
    groups = [g for run in runs for g in _divided(notebook, run, required)]
    groups = [group for group in groups if required & set(group.cells)]
    if all(group.parses for group in groups):
        return groups
    others = _divided(notebook, together, required)
    return min(groups, others, key=lambda plan: sum(not group.parses for group in plan))


def _runs(notebook: _Notebook, name: str, together: list[int]) -> Iterator[list[int]]:
    """Yield runs of neighbours that could belong together. Only text or cells that do not run lie between them."""
    chosen = set(together)
    pieces: list[int] = []
    first = _neighbour(notebook, together[0], -1)
    last = _neighbour(notebook, together[-1], 1)
    for at in range(first, last + 1):
        if at in chosen or at in notebook.own_code:
            pieces.append(at)
        elif notebook.names[at] != name and notebook.divides(at):
            if chosen & set(pieces):
                yield pieces
            pieces = []
    if chosen & set(pieces):
        yield pieces


def _neighbour(notebook: _Notebook, at: int, step: int) -> int:
    """Return the next cell if it is the student's own code, and otherwise this one."""
    return at + step if at + step in notebook.own_code else at


def _divided(notebook: _Notebook, run: Sequence[int], required: frozenset[int]) -> list[_Group]:
    """Divide a run into texts: as few as possible that do not parse, and then as many texts as possible.

    A cell of the student's own joins only if that is needed, because it may be a trial that was never meant to count.
    """
    texts = [notebook.text(at) for at in run]
    parse = parse_alone([t if at in required else _dedented(t) for at, t in zip(run, texts, strict=True)])
    one_by_one = [_Group([at], text, ok) for at, text, ok in zip(run, texts, parse, strict=True)]
    if all(parse) or len(run) > _MAX_PIECES or sum(map(len, texts)) > MAX_TEXT:
        return one_by_one
    spans = [(i, j) for i in range(len(run)) for j in range(i + 2, len(run) + 1) if required & set(run[i:j])]
    candidates = [(span, text) for span in spans for text in _joined(texts[slice(*span)])]
    options: dict[int, list[_Group]] = {at: [group] for at, group in enumerate(one_by_one)}
    for ((i, j), text), parses in zip(candidates, parse_alone([text for _, text in candidates]), strict=True):
        if parses:
            options[i].append(_Group(list(run[i:j]), text, True))
    plans: list[list[_Group]] = [[] for _ in range(len(run) + 1)]
    for i in reversed(range(len(run))):
        choices = [[group, *plans[i + len(group.cells)]] for group in options[i]]
        plans[i] = min(choices, key=lambda plan: (sum(not group.parses for group in plan), -len(plan)))
    return plans[0]


def _joined(texts: list[str]) -> Iterator[str]:
    """Yield the texts that the pieces may be cut from: at the ends of lines, or within lines."""
    borders = len(texts) - 1
    ways = product(("\n", ""), repeat=borders) if len(texts) <= _MAX_MIXED else (("\n",) * borders, ("",) * borders)
    for way in ways:
        yield texts[0] + "".join(border + text for border, text in zip(way, texts[1:], strict=True))


def _dedented(text: str) -> str:
    """Return the text as IPython runs it: without the indentation of its first line."""
    indent = next((line[: len(line) - len(line.lstrip())] for line in text.split("\n") if line.strip()), "")
    return "\n".join(line.removeprefix(indent) for line in text.split("\n"))
