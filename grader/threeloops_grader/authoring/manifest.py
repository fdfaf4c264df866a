"""The trusted description of a lab: which cells exist, their kind and points, and the names that students define."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from nbformat import NotebookNode

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.authoring.names import bound
from threeloops_grader.authoring.regions import without

__all__ = [
    "REFLECTION",
    "SETUPS",
    "Exercise",
    "GradedCell",
    "Kind",
    "Manifest",
    "kind_of",
    "manifest",
    "split_test_id",
    "test_title",
]


class Kind(StrEnum):
    SETUP = "setup"
    ORACLE = "oracle"
    SOLUTION = "solution"
    TEST = "test"
    REFLECTION = "reflection"
    DEMO = "demo"
    PROSE = "prose"
    FREE = "free"


REFLECTION = "reflection"
"""The grade_id of the written answer, of which each lab has one."""

SETUPS = (Kind.SETUP, Kind.ORACLE)
"""An oracle is a setup cell that graded runs execute on the grader's side alone, because it gives the expected results
of the answers."""


@dataclass(frozen=True)
class GradedCell:
    """A test cell: one aspect of an exercise, with points of its own. `test` is its grade_id."""

    test: str
    points: float


@dataclass(frozen=True)
class Exercise:
    """A solution cell and its test cells. `id` is the solution's grade_id, its name in `--only` and in the
    names of wrong and right answers."""

    id: str
    parts: tuple[GradedCell, ...]

    @property
    def points(self) -> float:
        return sum(part.points for part in self.parts)

    @property
    def tests(self) -> tuple[str, ...]:
        return tuple(part.test for part in self.parts)


def split_test_id(test: str) -> tuple[str, str]:
    """Return the exercise and the part that a test's grade_id names: `softmax_test_edges` is ("softmax", "edges").

    The part of `softmax_test`, the only test of its exercise, is "".
    """
    exercise, _, part = test.partition("_test")
    return exercise, part.removeprefix("_")


def test_title(test: str) -> str:
    """Return a test's name in reports: `softmax`, or `softmax (edges)`."""
    exercise, part = split_test_id(test)
    return f"{exercise} ({part.replace('_', ' ')})" if part else exercise


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
    """Whether it has no hidden tests."""

    @property
    def parts(self) -> tuple[GradedCell, ...]:
        return tuple(part for exercise in self.exercises for part in exercise.parts)

    @property
    def max_score(self) -> float:
        return sum(part.points for part in self.parts)

    def exercise(self, name: str) -> Exercise:
        """Find an exercise by name. Raises LabError, which lists the exercises, if there is none of that name."""
        for exercise in self.exercises:
            if name == exercise.id or name in exercise.tests:
                return exercise
        names = ", ".join(e.id for e in self.exercises)
        raise LabError(f"lab {self.lab.slug} has no exercise {name!r}; its exercises are {names}")

    def text(self, name: str) -> str:
        """Return the text of the cell with this grade_id, with the solution or the hidden tests that it holds."""
        return next(str(cell.source) for cell in self.master.cells if cell.id == name)

    def kind(self, cell: NotebookNode) -> Kind:
        return self.kinds.get(cell.get("id", ""), Kind.FREE)


def manifest(lab: Lab, *, visible: bool = False) -> Manifest:
    """Return the manifest of a lab. It is read from the lab's source, once for each version of the source.

    `visible` leaves out the hidden tests, and keeps those that a student can run alone.
    """
    return _manifest(lab, lab.source.stat().st_mtime_ns, visible)


@cache
def _manifest(lab: Lab, _modified: int, visible: bool) -> Manifest:
    master = lab.master()
    if visible:
        for cell in master.cells:
            cell.source = without(cell.source, "HIDDEN TESTS")
    kinds = {cell.id: kind_of(cell) for cell in master.cells}
    parts: dict[str, list[GradedCell]] = {}
    for cell in (c for c in master.cells if kinds[c.id] is Kind.TEST):
        parts.setdefault(split_test_id(cell.id)[0], []).append(
            GradedCell(cell.id, float(cell.metadata.nbgrader.points))
        )
    exercises = tuple(Exercise(name, tuple(tests)) for name, tests in parts.items())
    for exercise in exercises:
        if kinds.get(exercise.id) is not Kind.SOLUTION:
            raise LabError(f"lab {lab.slug}: test cell {exercise.tests[0]} has no solution cell {exercise.id}")
    exports = sorted({n for c in master.cells if kinds[c.id] is Kind.SOLUTION for n in bound(c.source, imports=False)})
    return Manifest(lab, master, kinds, exercises, tuple(exports), visible)


def kind_of(cell: NotebookNode) -> Kind:
    meta = cell.metadata.get("nbgrader", {})
    is_code = cell.cell_type == "code"
    if meta.get("grade"):
        return Kind.TEST
    if meta.get("solution"):
        return Kind.SOLUTION if is_code else Kind.REFLECTION
    if "setup" in (tags := cell.metadata.get("tags", [])):
        return Kind.ORACLE if "oracle" in tags else Kind.SETUP
    return Kind.DEMO if is_code else Kind.PROSE
