"""A class of mixed submissions of one lab, generated from its solution: what a teaching assistant finds on a Monday."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from threeloops_grader.authoring.answers import wrong_answers as known_wrong
from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import Kind, Manifest, manifest

MIX = (
    "honest",
    "wrong",
    "half-done",
    "honest",
    "untouched",
    "honest",
    "wrong",
    "crashing",
    "honest",
    "half-done",
)
"""Ten students; a class repeats them. Nothing loops for ever or kills its kernel: stock nbgrader must end too."""

_CRASH = 'raise RuntimeError("this cell was never run before it was handed in")\n'


@dataclass(frozen=True)
class Student:
    """A submission and the score that it must earn."""

    name: str
    kind: str
    notebook: NotebookNode
    score: float


def classroom(lab: Lab, released: NotebookNode, size: int) -> Iterator[Student]:
    """`size` students who worked on `released`, the lab as students receive it."""
    trusted = manifest(lab)
    answers = {c.id: c.source for c in trusted.master.cells if trusted.kinds[c.id] is Kind.SOLUTION}
    wrong = wrong_answers(lab, trusted)
    for number in range(size):
        kind = MIX[number % len(MIX)]
        given, lost = dict(answers), 0.0
        if kind == "untouched":
            given, lost = {}, trusted.max_score
        elif kind == "half-done":
            done = {e.id for e in trusted.exercises[: len(trusted.exercises) // 2]}
            given = {name: text for name, text in answers.items() if name in done}
            lost = sum(e.points for e in trusted.exercises if e.id not in done)
        elif kind == "wrong":
            name, text = wrong[number % len(wrong)]
            given[name], lost = text, trusted.exercise(name).points
        elif kind == "crashing":
            first = trusted.exercises[0]
            given[first.id], lost = _CRASH, first.points
        notebook = fill_in(released, given)
        yield Student(f"student_{number:02}_{kind.replace('-', '_')}", kind, notebook, trusted.max_score - lost)


def wrong_answers(lab: Lab, trusted: Manifest) -> list[tuple[str, str]]:
    """The lab's known-wrong answers as (exercise, text); neighbours in the list are of different exercises."""
    found = [(answer.exercise, answer.text) for answer in known_wrong(lab)]
    by_exercise = [[pair for pair in found if pair[0] == e.id] for e in trusted.exercises]
    mixed = [pairs[i] for i in range(max(map(len, by_exercise))) for pairs in by_exercise if i < len(pairs)]
    if not mixed:
        raise FileNotFoundError(f"solutions/{lab.slug} holds no wrong answer: a class needs some")
    return mixed


def fill_in(released: NotebookNode, answers: dict[str, str]) -> NotebookNode:
    """The released notebook with the given answers written into their cells."""
    notebook = copy.deepcopy(released)
    for cell in notebook.cells:
        if cell.id in answers:
            cell.source = answers[cell.id]
    return notebook


def hand_in(students: list[Student], lab: Lab, folder: Path) -> None:
    """Write `folder/<student>/<lab>/<lab>.ipynb`, as nbgrader collects them."""
    for student in students:
        place = folder / student.name / lab.slug
        place.mkdir(parents=True)
        nbformat.write(student.notebook, place / f"{lab.slug}.ipynb")
