"""The rules that every lab's source must keep before it is released.

`lint(lab)` returns one sentence for each broken rule, with the name of the lab and the cell. If the list is empty, the
lab is sound.
"""

import ast
import builtins
import importlib.util
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Self

from nbformat import NotebookNode
from threeloops.inner.replay.allowlist.admit import NotAdmitted, admit

from threeloops_grader.authoring.answers import right_faults, wrong_faults
from threeloops_grader.authoring.data_files import data_files, missing_pictures
from threeloops_grader.authoring.labs import Lab, LabError, LabLimits, grade_id
from threeloops_grader.authoring.manifest import SETUPS, Kind, kind_of, split_test_id
from threeloops_grader.authoring.markdown.rubric import rubric_faults
from threeloops_grader.authoring.names import bound, imported_modules, replays, texts, used
from threeloops_grader.authoring.regions import KINDS, regions, without
from threeloops_grader.authoring.teaching import teaching_faults

__all__ = ["lint", "require_sound"]

_FULL_MARKS = 100
_MOST_EXERCISES = 8
_MOST_PARTS = 4
_IPYTHON = {"get_ipython", "display", "In", "Out", "_", "__", "___"}
"""The names that a notebook's kernel defines besides Python's builtins."""
_LOOK_UP = ("globals", "locals", "vars", "user_ns")
"""Names that find others by their text."""
_PLAIN_PYTHON = (*SETUPS, Kind.SOLUTION, Kind.TEST)


@dataclass(frozen=True)
class _Cell:
    """`name` is the cell's grade_id, or its position and the beginning of its text."""

    name: str
    kind: Kind
    source: str
    meta: dict[str, Any]
    """nbgrader's metadata."""
    node: NotebookNode

    @property
    def is_demo(self) -> bool:
        return self.kind is Kind.DEMO and "demo" in self.node.metadata.get("tags", ())


@dataclass(frozen=True)
class _Source:
    lab: Lab
    cells: list[_Cell]

    @classmethod
    def read(cls, lab: Lab) -> Self:
        return cls(lab, list(_cells(lab)))

    def of(self, *kinds: Kind) -> list[_Cell]:
        return [cell for cell in self.cells if cell.kind in kinds]


def _cells(lab: Lab) -> Iterator[_Cell]:
    for position, node in enumerate(lab.master().cells, start=1):
        first_line = node.source.strip().partition("\n")[0]
        name = grade_id(node) or f"{position} ({first_line[:40]!r})"
        yield _Cell(name, kind_of(node), node.source, node.metadata.get("nbgrader", {}), node)


def lint(lab: Lab) -> list[str]:
    source = _Source.read(lab)
    unreadable = list(_cells_parse(source))
    unnamed = list(_unnamed(source))
    rules = [_header, _metadata, _hints, _markers, _pictures]
    if not unnamed:  # cells without a name would be missed everywhere else
        rules += [_exercises, _reflection]
    if not unnamed and not unreadable:
        rules += [_setups, _solutions, _tests, _replayed, _withheld_imports, _answers, _demos]
    faults = unnamed + unreadable + [message for rule in rules for message in rule(source)]
    if not faults:
        faults += teaching_faults(lab)
    for notebook in lab.notebooks[1:]:
        dives = _Source.read(notebook)
        faults += [
            f"dives: {message}" for rule in (_dives, _metadata, _hints, _pictures, _demos) for message in rule(dives)
        ]
    try:
        data_files(lab)
    except LabError as error:
        faults.append(str(error).removeprefix(f"lab {lab.slug}, "))
    return [f"{lab.slug}, {message}" for message in faults]


def require_sound(lab: Lab) -> None:
    """Check the rules of a lab. Raises LabError with every broken rule."""
    if faults := lint(lab):
        raise LabError("\n".join(faults))


def _header(source: _Source) -> Iterator[str]:
    header = source.lab.settings
    if not header.get("title"):
        yield "header: threeloops.title is missing"
    withholds = header.get("withholds")
    if not isinstance(withholds, list):
        yield "header: threeloops.withholds must list the modules that hold answers ([] where there are none)"
        withholds = []
    for module in withholds:
        if not _exists(module):
            yield f"header: withholds {module}, but there is no such module"
    yield from rubric_faults(header.get("rubric"))
    allowed = {field.name for field in fields(LabLimits)}
    for name in header.get("limits", {}):
        if name not in allowed:
            yield f"header: limits.{name} is unknown; the limits are {', '.join(sorted(allowed))}"


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _cells_parse(source: _Source) -> Iterator[str]:
    for cell in source.cells:
        if cell.kind in _PLAIN_PYTHON:
            shown = {f" without its {kind} region": without(cell.source, kind) for kind in KINDS}
            for what, text in {"": cell.source, **shown}.items():
                try:
                    ast.parse(text)
                except SyntaxError as error:
                    yield f"cell {cell.name}{what} is not plain Python: line {error.lineno}: {error.msg}"
                    break


def _unnamed(source: _Source) -> Iterator[str]:
    """Check the grade_id of a cell, by which nbgrader, grading and the wrong answers know it."""
    expected = {Kind.SOLUTION: "<exercise>", Kind.TEST: "<exercise>_test", Kind.REFLECTION: "reflection"}
    for cell in source.cells:
        if cell.kind in expected and not grade_id(cell.node):
            yield (
                f'cell {cell.name} is a {cell.kind} cell without a name: add "grade_id": "{expected[cell.kind]}" to '
                "its nbgrader metadata"
            )


def _metadata(source: _Source) -> Iterator[str]:
    for cell in source.cells:
        kind = cell.kind
        meta = cell.meta
        is_code = cell.node.cell_type == "code"
        if kind is Kind.DEMO and not cell.is_demo:
            yield f"cell {cell.name} is code and neither setup, demo, solution nor test: tag it or give it a grade_id"
        if kind in SETUPS and not (is_code and meta.get("locked") and meta.get("grade_id")):
            yield f"cell {cell.name} is tagged setup: it needs a grade_id and locked: true, and must be code"
        if kind is Kind.TEST and not (is_code and meta.get("locked")):
            yield f"cell {cell.name} is graded: it must be code and locked: true"
        if cell.is_demo and meta:
            yield f"cell {cell.name} is tagged demo and carries nbgrader metadata: it can be only one"
        if kind in (Kind.SOLUTION, Kind.REFLECTION) and meta.get("locked"):
            yield f"cell {cell.name} is the student's to write: locked must be false"
        if meta and meta.get("schema_version") != 3:
            yield f"cell {cell.name}: schema_version is {meta.get('schema_version')!r}, expected 3"
    for name, count in Counter(filter(None, (grade_id(cell.node) for cell in source.cells))).items():
        if count > 1:
            yield f"cell {name}: {count} cells have this grade_id; each needs its own"


def _exercises(source: _Source) -> Iterator[str]:
    tests = source.of(Kind.TEST)
    solutions = source.of(Kind.SOLUTION)
    if not 1 <= len(solutions) <= _MOST_EXERCISES:
        yield f"has {len(solutions)} exercises: a lab has between 1 and {_MOST_EXERCISES}"
    if tests and (total := sum(cell.meta.get("points", 0) for cell in tests)) != _FULL_MARKS:
        yield f"points: the test cells give {total:g} together, expected {_FULL_MARKS}"
    for cell in tests:
        if not cell.meta.get("points", 0) > 0:
            yield f"cell {cell.name}: points = {cell.meta.get('points')!r}, expected more than 0"
    answers = [cell.name for cell in solutions]
    for cell in tests:
        if split_test_id(cell.name)[0] not in answers:
            yield f"cell {cell.name}: a test is called <solution>_test or <solution>_test_<part>, and there is no " + (
                f"solution {split_test_id(cell.name)[0]!r}"
            )
    for name in answers:
        parts = [cell.name for cell in tests if split_test_id(cell.name)[0] == name]
        if not 1 <= len(parts) <= _MOST_PARTS:
            yield f"cell {name} has {len(parts)} test cells ({', '.join(parts) or 'none'}): expected 1 to {_MOST_PARTS}"
        if len(parts) > 1 and f"{name}_test" in parts:
            yield f"cell {name}_test: where an exercise has several tests, each names its part: {name}_test_<part>"


def _dives(source: _Source) -> Iterator[str]:
    """Check that deep dives are complete, so that they hold nothing to answer."""
    if not source.lab.settings.get("title"):
        yield "header: threeloops.title is missing"
    for cell in source.cells:
        if cell.kind in (Kind.SOLUTION, Kind.TEST, Kind.REFLECTION):
            yield f"cell {cell.name} is a {cell.kind} cell: only the core notebook is graded"


def _reflection(source: _Source) -> Iterator[str]:
    reflections = source.of(Kind.REFLECTION)
    if [cell.name for cell in reflections] != ["reflection"]:
        names = ", ".join(cell.name for cell in reflections) or "none"
        yield f"has the written answers {names}: expected exactly one, 'reflection'"
    for before, cell in zip(source.cells, source.cells[1:], strict=False):
        if cell.kind is Kind.REFLECTION and before.kind is not Kind.PROSE:
            yield f"cell {cell.name}: its question belongs into a prose cell before it"


def _hints(source: _Source) -> Iterator[str]:
    """Check that the code of a hint cell is folded away. Otherwise students read its hints before they want them."""
    for cell in source.cells:
        folded = cell.node.metadata.get("jupyter", {}).get("source_hidden")
        if cell.is_demo and cell.source.lstrip().startswith("hint(") and not folded:
            yield f'cell {cell.name} shows its hints: give it jupyter={{"source_hidden": true}}'


def _markers(source: _Source) -> Iterator[str]:
    home = {"SOLUTION": Kind.SOLUTION, "HIDDEN TESTS": Kind.TEST}
    for cell in source.cells:
        for region in KINDS:
            try:
                marked = regions(cell.source, region)
            except ValueError as error:
                yield f"cell {cell.name}: {error}"
                continue
            if marked and cell.kind is not home[region]:
                yield f"cell {cell.name} has a {region} region: only {home[region]} cells may"
            if not marked and cell.kind is home[region]:
                yield f"cell {cell.name} has no {region} region: it would be released as it is"


def _setups(source: _Source) -> Iterator[str]:
    """Check that a setup cell runs with any answers, because Run All, grading and the cells below all need it."""
    answers = {name for cell in source.of(Kind.SOLUTION) for name in bound(cell.source, imports=False)}
    before: set[str] = set()
    of_oracles: set[str] = set()  # names that only tests and later oracles may use
    for cell in source.of(*SETUPS):
        missing = used(cell.source) - before - (of_oracles if cell.kind is Kind.ORACLE else set())
        if needed := sorted((missing | texts(cell.source, *_LOOK_UP)) & answers):
            yield (
                f"cell {cell.name} depends on {', '.join(needed)}, which an exercise asks for: it would stop where the "
                "answer is missing or wrong. Pass the function as an argument, or take the library's own"
            )
        if unknown := sorted(missing - answers):
            yield f"cell {cell.name} uses {', '.join(unknown)}: neither a builtin, nor from a setup cell above it"
        if taken := sorted(bound(cell.source) & answers):
            yield f"cell {cell.name} defines {', '.join(taken)}, as a solution cell does: one would hide the other"
        (of_oracles if cell.kind is Kind.ORACLE else before).update(bound(cell.source))


def _demos(source: _Source) -> Iterator[str]:
    """Check that a demo cell uses only names that cells above it define. One that uses an answer must also work before
    the answer is written.

    A `try` in the cell counts as proof, because real proof would need each demonstration to be executed.
    """
    answers = {name for cell in source.of(Kind.SOLUTION) for name in bound(cell.source, imports=False)}
    above = set(_IPYTHON)
    for cell in source.cells:
        if cell.node.cell_type != "code":
            continue
        try:
            tries = any(isinstance(node, ast.Try) for node in ast.walk(ast.parse(cell.source)))
        except SyntaxError:  # a line of IPython's own: what this cell defines for those below is not known
            return
        if cell.kind is Kind.DEMO and not tries:
            needed = used(cell.source)
            if unknown := sorted(needed - above):
                yield f"cell {cell.name} uses {', '.join(unknown)}: neither a builtin, nor defined by a cell above it"
            if asked := sorted(needed & above & answers):
                yield (
                    f"cell {cell.name} uses {', '.join(asked)}, which an exercise asks for, and catches nothing: in an "
                    "untouched lab it ends in a traceback. Put the call into try: … except NotImplementedError: and "
                    "print what will appear there"
                )
        above |= bound(cell.source)


def _solutions(source: _Source) -> Iterator[str]:
    for cell in source.of(Kind.SOLUTION):
        for node in ast.parse(cell.source).body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Assign() | ast.AnnAssign():
                    pass
                case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                    pass
                case _:
                    where = f"cell {cell.name}, line {node.lineno}"
                    yield f"{where}: a solution defines functions, classes and constants only"
        for name in sorted(bound(cell.source, imports=False) & set(dir(builtins))):
            yield f"cell {cell.name} defines {name}, which is a builtin: its test would call Python's own; rename it"


def _tests(source: _Source) -> Iterator[str]:
    setup = {name for cell in source.of(*SETUPS) for name in bound(cell.source)}
    of_each = {cell.name: bound(cell.source, imports=False) for cell in source.of(Kind.SOLUTION)}
    answers = set().union(*of_each.values())
    for cell in source.of(Kind.TEST):
        visible = without(cell.source, "HIDDEN TESTS")
        for what, text in (("", cell.source), (" (visible part)", visible)):
            if unknown := sorted(used(text) - setup - answers):
                yield (
                    f"cell {cell.name}{what} uses {', '.join(unknown)}: neither a builtin, nor from setup, nor defined "
                    "at the top level of a solution cell, nor imported in the cell"
                )
                break
        if "check" not in used(visible):
            yield f"cell {cell.name}: its visible part checks nothing"
        if not used(cell.source) & answers:
            yield f"cell {cell.name} uses no name that a solution cell defines: it cannot fail a student"
        foreign = answers - of_each.get(split_test_id(cell.name)[0], answers)
        if asked := sorted((used(cell.source) | texts(cell.source, *_LOOK_UP)) & foreign):
            yield (
                f"cell {cell.name} uses {', '.join(asked)}, which another exercise asks for: an answer would fail "
                "where that one is missing or wrong. Take the library's own, or define it in a setup cell"
            )


def _replayed(source: _Source) -> Iterator[str]:
    """Check that the text of the answer's own cell holds admitted kernels, because a replay takes them from it."""
    answers = {cell.name: cell for cell in source.of(Kind.SOLUTION)}
    for cell in source.of(Kind.TEST):
        if (answer := answers.get(split_test_id(cell.name)[0])) and replays(cell.source):
            try:
                if not admit(answer.source).kernels:
                    yield f"cell {cell.name} replays kernels, and {answer.name} defines none (@triton.jit, top level)"
            except NotAdmitted as error:
                yield f"cell {answer.name} is replayed and is not admitted: {error}"


def _withheld_imports(source: _Source) -> Iterator[str]:
    withheld = tuple(f"{module}." for module in source.lab.settings.get("withholds") or [])
    for cell in source.cells:
        if cell.kind in _PLAIN_PYTHON:
            for module in imported_modules(cell.source):
                if f"{module}.".startswith(withheld):
                    yield f"cell {cell.name} imports {module}, which is withheld: it does not exist in a graded run"


def _pictures(source: _Source) -> Iterator[str]:
    for cell in source.cells:
        if cell.node.cell_type == "markdown":
            for what in missing_pictures(source.lab, cell.source):
                yield f"cell {cell.name} shows {what}"


def _answers(source: _Source) -> Iterator[str]:
    yield from right_faults(source.lab)
    yield from wrong_faults(source.lab)
