"""Answers beside the reference: other right ones, and known-wrong ones that say what grading them must show.

An answer is a section of `answers.md`, as a change to the reference, or a file in `right/` or `wrong/` that holds the
whole text of an exercise's cell.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import dropwhile
from pathlib import Path
from typing import Literal, Self

from threeloops_grader.authoring.changes.form import sections, written
from threeloops_grader.authoring.changes.hunks import Hunk, apply, common
from threeloops_grader.authoring.labs import Lab, grade_id
from threeloops_grader.authoring.manifest import Kind, kind_of, split_test_id
from threeloops_grader.authoring.names import bound, used
from threeloops_grader.authoring.regions import unmarked

__all__ = ["CHANGES", "Answer", "KnownWrong", "right_answers", "right_faults", "wrong_answers", "wrong_faults"]

CHANGES = "answers.md"
"""The file of a lab's answers that are changes to the reference."""
_FEWEST_WRONG_ANSWERS = 3
_KEYS = ("expect", "fails", "caught")
_KEY = re.compile(r"#\s*(\w+)\s*:\s*(.*)")
_ALIKE = 0.65
"""How close a word must be to a key to be taken for one, by difflib: `fail` and `expected` are, `note` is not."""
_SMALL = 0.5
"""An answer that shares this much of its lines with the reference is written as a change."""

_Side = Literal["right", "wrong"]


@dataclass(frozen=True)
class Answer:
    """An answer to an exercise. `name` is `<exercise>__<how>`, and `text` is the text of the exercise's cell.

    `place` is its place in the course, for messages.
    """

    name: str
    place: str
    text: str

    @property
    def exercise(self) -> str:
        return self.name.partition("__")[0]


@dataclass(frozen=True)
class KnownWrong(Answer):
    """A wrong answer, and the expected results of grading it. In `answers.md` they are the list below its heading:

    - `- expect: ` words of the message that the answer must earn;
    - `- fails: values, edges`: the parts whose points it loses, left out if it loses all;
    - `- caught: hidden`: it passes everything that a student sees.

    In a whole file they are comments before the first line of code, which begin with `#` instead of `-`.
    """

    expect: str
    fails: tuple[str, ...] = ()
    only_hidden: bool = False

    @classmethod
    def read(cls, draft: "_Draft", text: str) -> Self:
        """Return the answer that the keys describe. Raises ValueError for a key that is missing or unknown."""
        for key, value in draft.keys.items():
            if key not in _KEYS:
                raise ValueError(f"{draft.place}: '{key}: {value}': no such key; the keys are {', '.join(_KEYS)}")
        expect, fails, caught = (draft.keys.get(key) for key in _KEYS)
        if not expect:
            missing = "'expect: <words of the failing check's message>' is missing at its top"
            raise ValueError(f"{draft.place}: {missing}, in a file as a comment")
        if caught not in (None, "hidden"):
            raise ValueError(f"{draft.place}: 'caught: {caught}': expected hidden, or no such line")
        parts = tuple(part.strip() for part in fails.split(",")) if fails is not None else ()
        return cls(draft.name, draft.place, text, expect, parts, caught is not None)

    def lost(self, tests: Sequence[str]) -> set[str]:
        """Return the tests of its exercise that it fails. Raises ValueError for a part that the exercise does not
        have."""
        by_part = {split_test_id(test)[1]: test for test in tests}
        if unknown := set(self.fails) - by_part.keys():
            parts = f"the parts are {', '.join(by_part)}" if all(by_part) else "it has no parts: take the line out"
            raise ValueError(
                f"{self.place}: 'fails: {', '.join(self.fails)}': {self.exercise} has no part "
                f"{', '.join(sorted(unknown))!r}; {parts}"
            )
        return {by_part[part] for part in self.fails or by_part}


def right_answers(lab: Lab) -> list[Answer]:
    """Return the other right answers of a lab, by name. Raises ValueError for one that cannot be read."""
    references = _references(lab)
    return [Answer(draft.name, draft.place, draft.text(references)) for draft in _drafts(lab, "right")]


def wrong_answers(lab: Lab) -> list[KnownWrong]:
    """Return the known-wrong answers of a lab, by name. Raises ValueError for one that cannot be read."""
    references = _references(lab)
    return [KnownWrong.read(draft, draft.text(references)) for draft in _drafts(lab, "wrong")]


@dataclass(frozen=True)
class _Draft:
    """An answer in its written form: a whole text, or hunks of a change."""

    side: _Side
    name: str
    place: str
    keys: Mapping[str, str]
    whole: str | None = None
    hunks: tuple[Hunk, ...] = ()

    @property
    def exercise(self) -> str:
        """The exercise that the name begins with; "" if the name does not have two parts."""
        exercise, _, what = self.name.partition("__")
        return exercise if what else ""

    def text(self, references: Mapping[str, str]) -> str:
        """Return the whole text of the cell. Raises ValueError if the change does not fit the reference."""
        if self.whole is not None:
            return self.whole
        if self.exercise not in references:
            raise ValueError(_misnamed(self.place, self.side, references))
        try:
            return apply(self.hunks, references[self.exercise])
        except ValueError as error:
            raise ValueError(f"{self.place}, {error}") from None


def _drafts(lab: Lab, side: _Side) -> list[_Draft]:
    """Return all answers of one side, by name.

    Raises ValueError if `answers.md` does not have its form, or if two answers have the same name.
    """
    drafts = [_whole(path, side) for path in _files(lab.folder / side) if path.suffix == ".py"]
    path = lab.folder / CHANGES
    if path.exists():
        try:
            for section in sections(path.read_text(encoding="utf-8")):
                if section.kind == side:
                    place = f"{CHANGES}:{section.line}, {side}/{section.name}"
                    drafts.append(_Draft(side, section.name, place, section.keys, hunks=section.hunks))
        except ValueError as error:
            raise ValueError(f"{CHANGES}, {error}") from None
    for name, count in Counter(draft.name for draft in drafts).items():
        if count > 1:
            places = " and ".join(draft.place for draft in drafts if draft.name == name)
            raise ValueError(f"{places} have the same name; rename or remove one")
    return sorted(drafts, key=lambda draft: draft.name)


def _whole(path: Path, side: _Side) -> _Draft:
    text = path.read_text(encoding="utf-8")
    return _Draft(side, path.stem, f"{side}/{path.name}", dict(_header(text)), text)


def _files(folder: Path) -> list[Path]:
    """Return the answer files, without the files that editors and Python leave behind."""
    return [path for path in sorted(folder.glob("*")) if not path.name.startswith((".", "__pycache__"))]


def _header(text: str) -> Iterator[tuple[str, str]]:
    """Yield the keys, and words that look like one, of the comments before the first line of code.

    Other comments are skipped.
    """
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            return
        key = _KEY.match(line)
        if key and get_close_matches(key[1].lower(), _KEYS, n=1, cutoff=_ALIKE):
            yield key[1], key[2].strip()


def _references(lab: Lab) -> dict[str, str]:
    """Return the reference answer to each exercise, without markers."""
    return {exercise: unmarked(source, "SOLUTION") for exercise, source in _cells(lab, Kind.SOLUTION).items()}


def _cells(lab: Lab, kind: Kind) -> dict[str, str]:
    return {name: cell.source for cell in lab.master().cells if (name := grade_id(cell)) and kind_of(cell) is kind}


@dataclass(frozen=True)
class _Exercise:
    defines: frozenset[str]
    """Top-level names of its solution cell."""
    tests: dict[str, frozenset[str]]
    """Its test cells, each with the names that it uses."""

    @property
    def used(self) -> frozenset[str]:
        return frozenset().union(*self.tests.values())


def right_faults(lab: Lab) -> list[str]:
    """Find right answers that are not Python, belong to no exercise, or lack a name that the exercise's tests use.

    A right answer may do without the reference's helpers, because it solves the exercise in another way.
    """
    exercises = _exercises(lab)
    faults = list[str]()
    for draft, text in _readable(lab, "right", exercises, faults):
        exercise = exercises[draft.exercise]
        if missing := sorted((exercise.defines & exercise.used) - bound(text)):
            faults.append(
                f"{draft.place} does not define {', '.join(missing)}, which the tests of {draft.exercise} use"
            )
    return faults


def wrong_faults(lab: Lab) -> list[str]:
    """Find wrong answers that are not Python, belong to no exercise, lack a name of its cell, or do not say how they
    fail."""
    exercises = _exercises(lab)
    faults = list[str]()
    counted: Counter[str] = Counter()
    for draft, text in _readable(lab, "wrong", exercises, faults):
        exercise = exercises[draft.exercise]
        counted[draft.exercise] += 1
        try:
            answer = KnownWrong.read(draft, text)
            if exercise.tests:  # where there is none, that is the fault
                answer.lost(list(exercise.tests))
        except ValueError as error:
            faults.append(str(error))
        if missing := sorted(exercise.defines - bound(text, imports=False)):
            faults.append(f"{draft.place} does not define {', '.join(missing)}, as the cell does")
    return faults or [
        f"cell {name} has {counted[name]} known-wrong answers, expected {_FEWEST_WRONG_ANSWERS}"
        for name in exercises
        if counted[name] < _FEWEST_WRONG_ANSWERS
    ]


def _readable(
    lab: Lab, side: _Side, exercises: Mapping[str, _Exercise], faults: list[str]
) -> Iterator[tuple[_Draft, str]]:
    """Yield the answers that are Python and belong to an exercise, with their texts. Others are added to `faults`."""
    faults += [
        _misnamed(f"{side}/{path.name}", side, exercises) for path in _files(lab.folder / side) if path.suffix != ".py"
    ]
    try:
        drafts = _drafts(lab, side)
    except ValueError as error:
        faults.append(str(error))
        return
    references = _references(lab)
    for draft in drafts:
        if draft.exercise not in exercises:
            faults.append(_misnamed(draft.place, side, exercises))
            continue
        try:
            text = draft.text(references)
            ast.parse(text)
            if draft.whole is not None and (section := _as_change(draft, references[draft.exercise])):
                faults.append(f"{draft.place} repeats the reference: remove it, and add to {CHANGES}:\n{section}")
            yield draft, text
        except SyntaxError as error:
            faults.append(f"{draft.place} is not Python: line {error.lineno}: {error.msg}")
        except ValueError as error:
            faults.append(str(error))


def _as_change(draft: _Draft, reference: str) -> str:
    """Return the section of `answers.md` for an answer that is a whole file; "" if it is another program."""
    answer = "\n".join(dropwhile(_KEY.match, (draft.whole or "").splitlines()))
    if common(reference, answer) < _SMALL:
        return ""
    return written(f"{draft.side}/{draft.name}", draft.keys, reference, answer)


def _exercises(lab: Lab) -> dict[str, _Exercise]:
    tests = {name: used(source) for name, source in _cells(lab, Kind.TEST).items()}
    return {
        exercise: _Exercise(
            bound(source, imports=False),
            {name: names for name, names in tests.items() if split_test_id(name)[0] == exercise},
        )
        for exercise, source in _cells(lab, Kind.SOLUTION).items()
    }


def _misnamed(place: str, side: _Side, exercises: Iterable[str]) -> str:
    what = "<what_is_wrong>" if side == "wrong" else "<how>"
    return (
        f"{place}: expected {side}/<exercise>__{what} (two underscores), where the exercises are "
        f"{', '.join(exercises)}; rename it, or no command grades it"
    )
