"""Read a lab's source and run one exercise without the wall: plain Python, one process, in seconds.

The wall (grader/) grades real submissions. These tests ask an earlier question — do the lab's own texts
fit together? — so they need only what both sides share: setup cells run once, the answer runs after them,
and each test cell starts from a fresh namespace that holds the setup names and the exported names.
"""

import ast
import contextlib
import functools
import linecache
import re
from dataclasses import dataclass
from pathlib import Path

from threeloops_grader.authoring.labs import find_lab
from threeloops_grader.authoring.manifest import split_test_id

SOLUTIONS = Path(__file__).parents[2] / "solutions"
SOLUTION_REGION = re.compile(r"^( *)### BEGIN SOLUTION\n.*?^ *### END SOLUTION\n?", re.M | re.S)
HIDDEN_REGION = re.compile(r"^ *### BEGIN HIDDEN TESTS\n.*?^ *### END HIDDEN TESTS\n?", re.M | re.S)


@dataclass(frozen=True)
class LabSource:
    """The texts of one lab, keyed by exercise (the grade_id of its solution cell)."""

    name: str
    folder: Path
    metadata: dict
    setup: str
    solutions: dict[str, str]
    tests: dict[str, list[str]]
    points: dict[str, int]

    @property
    def stubs(self) -> dict[str, str]:
        """What a student receives: every solution region replaced as nbgrader's ClearSolutions does."""
        return {exercise: cleared(text) for exercise, text in self.solutions.items()}

    @property
    def visible_tests(self) -> dict[str, list[str]]:
        """What a student sees of the tests: without the hidden regions."""
        return {name: [HIDDEN_REGION.sub("", text + "\n") for text in texts] for name, texts in self.tests.items()}


@functools.cache
def load(lab: str) -> LabSource:
    """Parse `solutions/<lab>/<lab>.py`; `lab` is the folder's full name."""
    notebook = find_lab(lab).master()  # kept by the process, so other tests need not read it again
    setup, solutions, tests, points = [], {}, {}, {}
    for cell in notebook.cells:
        role = cell.metadata.get("nbgrader", {})
        if cell.cell_type != "code":
            continue
        if "setup" in cell.metadata.get("tags", []):
            setup.append(cell.source)
        elif role.get("grade"):
            exercise, _ = split_test_id(role["grade_id"])
            tests.setdefault(exercise, []).append(cell.source)
            points[exercise] = points.get(exercise, 0) + role["points"]
        elif role.get("solution"):
            solutions[role["grade_id"]] = cell.source
    return LabSource(lab, SOLUTIONS / lab, dict(notebook.metadata), "\n\n".join(setup), solutions, tests, points)


def cleared(solution: str) -> str:
    """The text of a solution cell with its solution regions replaced by nbgrader's stub."""
    return SOLUTION_REGION.sub(r"\1# YOUR CODE HERE\n\1raise NotImplementedError()\n", solution + "\n")


def run_exercise(
    source: LabSource, exercise: str, answer: str, *, others: dict[str, str] | None = None, hidden: bool = True
) -> Exception | None:
    """Give `answer` for `exercise`, `others` for the rest, and run the exercise's test cells.

    `others` are the reference answers unless they are given; `hidden=False` runs what a student sees of the test.
    Returns None when all passed, otherwise the exception that the first failing one raised.
    """
    tests = source.tests if hidden else source.visible_tests
    with contextlib.chdir(source.folder):
        shared = {"__name__": "__main__"}
        execute(source.setup, f"<{source.name} setup>", shared)
        student, exported = dict(shared), set()
        try:
            for name, text in ((others or source.solutions) | {exercise: answer}).items():
                execute(text, f"<{source.name} {name}>", student)
                exported |= top_level_names(text)
            for number, text in enumerate(tests[exercise]):
                visible = shared | {name: student[name] for name in exported}
                execute(text, f"<{source.name} {exercise}_test {number}>", visible)
        except Exception as error:
            return error
    return None


def top_level_names(text: str) -> set[str]:
    """Functions, classes and constants that a cell defines: what the wall exports (imports are not)."""
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {leaf.id for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name)}
    return names


def execute(text: str, filename: str, namespace: dict) -> None:
    """`exec` with a file name that tracebacks and `inspect.getsource` (Triton needs it) can resolve."""
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    exec(compile(text, filename, "exec"), namespace)
