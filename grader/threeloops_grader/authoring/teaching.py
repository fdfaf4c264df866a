"""The rules of teaching that a program can check: lengths, folded parts, and parts that open after a check has passed.

They apply to a lab whose header says `edition: 2`.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from nbformat import NotebookNode

from threeloops_grader.authoring.answers import right_answers
from threeloops_grader.authoring.labs import OPENING, Lab, grade_id
from threeloops_grader.authoring.manifest import Kind, kind_of, split_test_id
from threeloops_grader.authoring.regions import regions, without

__all__ = ["teaching_faults"]

_FOLDED_NOTE = "*Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*"
"""The last line before the first folded cell: one click there opens all of the lab's setup code."""

_MOST_WORDS = 2500
_MOST_CELLS = 45
_MOST_LINES = 150
_FEWEST_RIGHT_ANSWERS = 3
_MARKS_UP = {"audit", "debrief", "hint", "myth", "predict", "table"}
"""The calls that render emphasis. All others, such as print, a caption or a title, show the asterisks."""
_EMPHASIS = re.compile(r"(?<![\w*])(\*\*?)(\w(?:[^*]*\w)?)\1(?![\w*])")
_DRAWING = {"animate", "explore", "figure", "hint"}


def teaching_faults(lab: Lab) -> Iterator[str]:
    """Yield one sentence per broken rule. The lab's cells must be sound otherwise."""
    if lab.settings.get("edition") != 2:
        return
    cells = lab.master().cells
    yield from _length(cells)
    yield from _folded(cells)
    yield from _opening(cells)
    yield from _checks(cells)
    yield from _debriefs(cells)
    for notebook in lab.notebooks:
        where = "dives: " if notebook.dives else ""
        shown = notebook.master().cells
        yield from _folded_note(shown, where)
        yield from (f"{where}{fault}" for cell in shown for fault in _asterisks(cell))
    called = {name for cell in cells if cell.cell_type == "code" for name, _ in _calls(cell.source)}
    if "animate" not in called:
        yield "shows no animation: each lab has at least one animate(…)"
    if "predict" in called and "calibration" not in called:
        yield "asks for predictions and never shows how good they were: end with calibration()"
    counted = Counter(answer.exercise for answer in right_answers(lab))
    for cell in cells:
        if kind_of(cell) is Kind.SOLUTION:
            count = counted[cell.id]
            if count < _FEWEST_RIGHT_ANSWERS:
                yield f"cell {cell.id} has {count} other right answers, expected {_FEWEST_RIGHT_ANSWERS}"


def _length(cells: list[NotebookNode]) -> Iterator[str]:
    words = sum(len(cell.source.split()) for cell in cells if cell.cell_type == "markdown")
    lines = sum(
        len([line for line in without(cell.source, "HIDDEN TESTS").splitlines() if line.strip()])
        for cell in cells
        if cell.cell_type == "code" and kind_of(cell) is not Kind.SOLUTION and not _is_folded(cell)
    )
    opening, oracles = (sum(tag in cell.metadata.get("tags", []) for cell in cells) for tag in (OPENING, Kind.ORACLE))
    shown = len(cells) - opening - oracles  # an oracle need not be read, like the setup cell that it continues
    limits = (
        (words, _MOST_WORDS, "words of prose"),
        (shown, _MOST_CELLS, "cells"),
        (lines, _MOST_LINES, "lines of code outside exercises that are not folded"),
    )
    for count, most, what in limits:
        if count > most:
            yield f"has {count} {what}, expected at most {most}: shorten it, or move depth into the dives"


def _folded(cells: list[NotebookNode]) -> Iterator[str]:
    for position, cell in enumerate(cells, start=1):
        if cell.cell_type != "code" or _is_folded(cell):
            continue
        what = "a test" if kind_of(cell) is Kind.TEST else ", ".join(sorted(_DRAWING & _names(cell)))
        if what and kind_of(cell) is not Kind.SOLUTION:
            name = grade_id(cell) or position
            yield f'cell {name} ({what}) shows its code: give it jupyter={{"source_hidden": true}}'


def _folded_note(cells: list[NotebookNode], where: str) -> Iterator[str]:
    first = next((i for i, cell in enumerate(cells) if cell.cell_type == "code" and _is_folded(cell)), None)
    if first is not None and not (first and cells[first - 1].source.endswith(_FOLDED_NOTE)):
        yield f"{where}the text before the first folded cell must end with the line {_FOLDED_NOTE}"


def _asterisks(cell: NotebookNode) -> Iterator[str]:
    """Find emphasis in a text that is shown unformatted."""
    if cell.cell_type != "code":
        return
    for name, call in _calls(cell.source, methods=True):
        if name in _MARKS_UP:
            continue
        for given in (*call.args, *(keyword.value for keyword in call.keywords)):
            parts = given.values if isinstance(given, ast.JoinedStr) else [given]
            texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            for text in texts:
                if emphasis := _EMPHASIS.search(re.sub("`[^`]*`", "", text)):
                    yield f"cell {cell.id} shows {emphasis[0]} with its asterisks, in {name}(…): drop them"


def _opening(cells: list[NotebookNode]) -> Iterator[str]:
    drawn = sum(OPENING in cell.metadata.get("tags", []) for cell in cells)
    if drawn != 1:
        yield f"has {drawn} cells tagged {OPENING!r}, expected one, which draws the picture of the lab's question"
    if f"(attachment:{OPENING}.png)" not in cells[0].source:
        yield f"the title shows no picture: it needs ![what is seen](attachment:{OPENING}.png)"


def _checks(cells: list[NotebookNode]) -> Iterator[str]:
    """Require that a check names its exercise and its part, and says what grading tries besides."""
    for cell in cells:
        if kind_of(cell) is not Kind.TEST:
            continue
        exercise, part = split_test_id(cell.id)
        checks = [call for name, call in _calls(cell.source) if name == "check"]
        if len(checks) != 1:
            yield f"cell {cell.id} has {len(checks)} blocks `with check(…)`, expected one"
            continue
        given = {keyword.arg: _value(keyword.value) for keyword in checks[0].keywords}
        if not checks[0].args or _value(checks[0].args[0]) != exercise:
            yield f"cell {cell.id}: its check must name the exercise {exercise!r}"
        if given.get("part", "") != part:
            yield f"cell {cell.id}: its check says part={given.get('part', '')!r}, expected {part!r}"
        if bool(given.get("hidden")) != bool(regions(cell.source, "HIDDEN TESTS")):
            yield f"cell {cell.id}: its check says hidden=… exactly where it has hidden tests"


def _debriefs(cells: list[NotebookNode]) -> Iterator[str]:
    parts: dict[str, list[str]] = {}
    explained: dict[str, object] = {}
    for cell in cells:
        if kind_of(cell) is Kind.TEST:
            exercise, part = split_test_id(cell.id)
            parts.setdefault(exercise, []).append(part)
        elif kind_of(cell) is Kind.DEMO:
            for name, call in _calls(cell.source):
                if name == "debrief" and call.args:
                    given = {keyword.arg: _value(keyword.value) for keyword in call.keywords}
                    explained[str(_value(call.args[0]))] = given.get("parts", ("",))
    for exercise, expected in parts.items():
        if exercise not in explained:
            yield f"cell {exercise}: no debrief({exercise!r}, …) says why the answer works"
        elif explained[exercise] != tuple(expected):
            opens = explained[exercise]
            yield f"cell {exercise}: its debrief opens after parts={opens!r}, expected {tuple(expected)!r}"


def _is_folded(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get("jupyter", {}).get("source_hidden"))


def _names(cell: NotebookNode) -> set[str]:
    return {name for name, _ in _calls(cell.source)}


@lru_cache(256)
def _calls(source: str, methods: bool = False) -> tuple[tuple[str, ast.Call], ...]:
    """Return the calls of plain names in a text, in order, and of `methods` too. There are none if it is not plain
    Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ()
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [(call.func.id, call) for call in calls if isinstance(call.func, ast.Name)]
    if methods:
        named += [(call.func.attr, call) for call in calls if isinstance(call.func, ast.Attribute)]
    return tuple(named)


def _value(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
