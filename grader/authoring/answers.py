"""Answers beside the reference: files of `right/` and `wrong/`, each the whole text of an exercise's cell.

A known-wrong one says in its first lines what grading it must show.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Self

from grader.authoring.labs import Lab, grade_id
from grader.authoring.manifest import Kind, kind_of, split_test_id
from grader.authoring.names import bound, used

__all__ = ["KnownWrong", "right_faults", "wrong_faults"]

_FEWEST_WRONG_ANSWERS = 3
_KEYS = ("expect", "fails", "caught")
_KEY = re.compile(r"#\s*(\w+)\s*:\s*(.*)")
_ALIKE = 0.65
"""How close a word must be to a key to be taken for one, by difflib: `fail` and `expected` are, `note` is not."""


@dataclass(frozen=True)
class KnownWrong:
    """The first lines of `<exercise>__<what_is_wrong>.py`, each a comment with a key and its value:

    - `# expect: ` words of the message that the answer must earn;
    - `# fails: values, edges`: the parts whose points it loses, left out if it loses all;
    - `# caught: hidden`: it passes everything that a student sees.
    """

    path: Path
    expect: str
    fails: tuple[str, ...] = ()
    only_hidden: bool = False

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the first lines. Raises ValueError naming the file and the line if a line says something else."""
        said: dict[str, str] = {}
        for key, value in _header(path.read_text(encoding="utf-8")):
            if key not in _KEYS:
                raise ValueError(f"{path.name}: '# {key}: {value}': no such key; the keys are {', '.join(_KEYS)}")
            said[key] = value
        if not said.get("expect"):
            raise ValueError(f"{path.name}: line 1 must be '# expect: <words of the failing check's message>'")
        if said.get("caught", "hidden") != "hidden":
            raise ValueError(f"{path.name}: '# caught: {said['caught']}': expected hidden, or no such line")
        fails = tuple(part.strip() for part in said["fails"].split(",")) if "fails" in said else ()
        return cls(path, said["expect"], fails, "caught" in said)

    @property
    def exercise(self) -> str:
        return self.path.name.split("__")[0]

    def lost(self, tests: Sequence[str]) -> set[str]:
        """Return the tests of its exercise that it fails. Raises ValueError for a part that the exercise does not
        have."""
        by_part = {split_test_id(test)[1]: test for test in tests}
        if unknown := set(self.fails) - by_part.keys():
            parts = f"the parts are {', '.join(by_part)}" if all(by_part) else "it has no parts: take the line out"
            raise ValueError(
                f"{self.path.name}: '# fails: {', '.join(self.fails)}': {self.exercise} has no part "
                f"{', '.join(sorted(unknown))!r}; {parts}"
            )
        return {by_part[part] for part in self.fails or by_part}


def _header(text: str) -> Iterator[tuple[str, str]]:
    """Return the keys, and words that look like keys, in the comments before the first line of code. Other comments are
    skipped."""
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            return
        found = _KEY.match(line)
        if found and get_close_matches(found[1].lower(), _KEYS, n=1, cutoff=_ALIKE):
            yield found[1], found[2].strip()


@dataclass(frozen=True)
class _Exercise:
    defines: frozenset[str]
    """Top-level names of its solution cell."""
    tests: dict[str, frozenset[str]]
    """Its test cells, each with the names that it uses."""

    @property
    def used(self) -> frozenset[str]:
        return frozenset().union(*self.tests.values())


def right_faults(lab: Lab) -> Iterator[str]:
    """Check that each right answer is Python, belongs to an exercise, and defines the names that the tests of the
    exercise use.

    Unlike a wrong answer, it is built differently from the reference, so it may do without the reference's helpers.
    """
    exercises = _exercises(lab)
    for path in _files(lab.right):
        where, exercise = f"right/{path.name}", exercises.get(_named(path))
        if exercise is None:
            yield _misnamed(path, "<how>", exercises)
            continue
        text = path.read_text(encoding="utf-8")
        if why := _not_python(text):
            yield f"{where} {why}"
        elif missing := sorted((exercise.defines & exercise.used) - bound(text)):
            yield f"{where} does not define {', '.join(missing)}, which the tests of {_named(path)} use"


def wrong_faults(lab: Lab) -> Iterator[str]:
    """Check that each wrong answer is Python, belongs to an exercise, defines the same names as its cell, and says
    which parts it fails and how."""
    exercises = _exercises(lab)
    counted: Counter[str] = Counter()
    for path in _files(lab.wrong):
        where, exercise = f"wrong/{path.name}", exercises.get(_named(path))
        if exercise is None:
            yield _misnamed(path, "<what_is_wrong>", exercises)
            continue
        counted[_named(path)] += 1
        try:
            known = KnownWrong.read(path)
            if exercise.tests:  # where there is none, that is the fault
                known.lost(list(exercise.tests))
        except ValueError as error:
            yield f"wrong/{error}"
        text = path.read_text(encoding="utf-8")
        if why := _not_python(text):
            yield f"{where} {why}"
        elif missing := sorted(exercise.defines - bound(text, imports=False)):
            yield f"{where} does not define {', '.join(missing)}: it is the whole text of the cell with one mistake"
    for name in exercises:
        if counted[name] < _FEWEST_WRONG_ANSWERS:
            yield f"cell {name} has {counted[name]} known-wrong answers in wrong/, expected {_FEWEST_WRONG_ANSWERS}"


def _exercises(lab: Lab) -> dict[str, _Exercise]:
    cells = [(name, kind_of(cell), cell.source) for cell in lab.master().cells if (name := grade_id(cell))]
    tests = {name: used(source) for name, kind, source in cells if kind is Kind.TEST}
    return {
        exercise: _Exercise(
            bound(source, imports=False),
            {name: names for name, names in tests.items() if split_test_id(name)[0] == exercise},
        )
        for exercise, kind, source in cells
        if kind is Kind.SOLUTION
    }


def _files(folder: Path) -> list[Path]:
    """Return the answer files, without the files that editors and Python leave behind."""
    return [path for path in sorted(folder.glob("*")) if not path.name.startswith((".", "__pycache__"))]


def _named(path: Path) -> str:
    """Return the exercise that a file's name says, or "" if it says none."""
    exercise, _, what = path.stem.partition("__")
    return exercise if what and path.suffix == ".py" else ""


def _misnamed(path: Path, what: str, exercises: Iterable[str]) -> str:
    return (
        f"{path.parent.name}/{path.name}: expected <exercise>__{what}.py (two underscores), where the exercises are "
        f"{', '.join(exercises)}; rename it, or no command grades it"
    )


def _not_python(text: str) -> str:
    try:
        ast.parse(text)
    except SyntaxError as error:
        return f"is not Python: line {error.lineno}: {error.msg}"
    return ""
