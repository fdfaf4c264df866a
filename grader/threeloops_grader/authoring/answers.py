"""Answers other than the reference: right ones, and known-wrong ones with the failures that grading must find.

An answer is a section of `answers.md`: a change to the reference, or the whole text of an exercise's cell.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from threeloops_grader.authoring.labs import Lab, grade_id
from threeloops_grader.authoring.manifest import Kind, kind_of, split_test_id
from threeloops_grader.authoring.markdown.answer_file import ANSWERS, Draft, Side, drafts, written
from threeloops_grader.authoring.markdown.hunks import apply, common
from threeloops_grader.authoring.names import bound, used
from threeloops_grader.authoring.regions import unmarked

__all__ = ["Answer", "KnownWrong", "right_answers", "right_faults", "wrong_answers", "wrong_faults"]

_FEWEST_WRONG_ANSWERS = 3
_KEYS = ("expect", "fails", "caught")
_SMALL = 0.5
"""An answer that shares this much of its lines with the reference is written as a change."""


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
    """A wrong answer, and the expected results of grading it: the list below its heading in `answers.md`.

    - `- expect: ` words of the message that the answer must earn;
    - `- fails: values, edges`: the parts whose points it loses, left out if it loses all;
    - `- caught: hidden`: it passes everything that a student sees.
    """

    expect: str
    fails: tuple[str, ...] = ()
    only_hidden: bool = False

    @classmethod
    def read(cls, draft: Draft, text: str) -> Self:
        """Return the answer that the keys describe. Raises ValueError for a key that is missing or unknown."""
        for key, value in draft.keys.items():
            if key not in _KEYS:
                raise ValueError(f"{draft.place}: '{key}: {value}': no such key; the keys are {', '.join(_KEYS)}")
        expect, fails, caught = (draft.keys.get(key) for key in _KEYS)
        if not expect:
            missing = "'- expect: <words of the failing check's message>' is missing below its heading"
            raise ValueError(f"{draft.place}: {missing}")
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
    return [Answer(draft.name, draft.place, _text(draft, references)) for draft in _drafts(lab, "right")]


def wrong_answers(lab: Lab) -> list[KnownWrong]:
    """Return the known-wrong answers of a lab, by name. Raises ValueError for one that cannot be read."""
    references = _references(lab)
    return [KnownWrong.read(draft, _text(draft, references)) for draft in _drafts(lab, "wrong")]


def _drafts(lab: Lab, side: Side) -> list[Draft]:
    """Return all answers of one side, by name.

    Raises ValueError if `answers.md` does not have its form, or if two answers have the same name.
    """
    path = lab.folder / ANSWERS
    try:
        of_side = [draft for draft in drafts(path.read_text(encoding="utf-8")) if draft.side == side]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise ValueError(f"{ANSWERS}, {error}") from None
    for name, count in Counter(draft.name for draft in of_side).items():
        if count > 1:
            places = " and ".join(draft.place for draft in of_side if draft.name == name)
            raise ValueError(f"{places} have the same name; rename or remove one")
    return sorted(of_side, key=lambda draft: draft.name)


def _text(draft: Draft, references: Mapping[str, str]) -> str:
    """Return the whole text of the cell. Raises ValueError if the change does not fit the reference."""
    if draft.whole is not None:
        return draft.whole
    if draft.exercise not in references:
        raise ValueError(_misnamed(draft, references))
    try:
        return apply(draft.hunks, references[draft.exercise])
    except ValueError as error:
        raise ValueError(f"{draft.place}, {error}") from None


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
    lab: Lab, side: Side, exercises: Mapping[str, _Exercise], faults: list[str]
) -> Iterator[tuple[Draft, str]]:
    """Yield the answers that are Python and belong to an exercise, with their texts. Others are added to `faults`."""
    if (lab.folder / side).exists():
        faults.append(f"{side}/: no command reads this folder; move its answers to {ANSWERS}, and remove it")
    try:
        readable = _drafts(lab, side)
    except ValueError as error:
        faults.append(str(error))
        return
    references = _references(lab)
    for draft in readable:
        if draft.exercise not in exercises:
            faults.append(_misnamed(draft, exercises))
            continue
        try:
            text = _text(draft, references)
            ast.parse(text)
            if draft.whole is not None and common(references[draft.exercise], text) >= _SMALL:
                section = written(f"{side}/{draft.name}", draft.keys, references[draft.exercise], text)
                faults.append(f"{draft.place} repeats the reference: replace it by its change:\n{section}")
            yield draft, text
        except SyntaxError as error:
            faults.append(f"{draft.place} is not Python: line {error.lineno} of its text: {error.msg}")
        except ValueError as error:
            faults.append(str(error))


def _exercises(lab: Lab) -> dict[str, _Exercise]:
    tests = {name: used(source) for name, source in _cells(lab, Kind.TEST).items()}
    return {
        exercise: _Exercise(
            bound(source, imports=False),
            {name: names for name, names in tests.items() if split_test_id(name)[0] == exercise},
        )
        for exercise, source in _cells(lab, Kind.SOLUTION).items()
    }


def _misnamed(draft: Draft, exercises: Iterable[str]) -> str:
    what = "<what_is_wrong>" if draft.side == "wrong" else "<how>"
    return (
        f"{draft.place}: expected {draft.side}/<exercise>__{what} (two underscores), where the exercises are "
        f"{', '.join(exercises)}; rename it, or no command grades it"
    )
