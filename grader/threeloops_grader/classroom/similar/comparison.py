"""Compare the answers of a class with each other, with earlier terms, with the solution and with the library."""

import ast
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from threeloops_grader.authoring.answers import right_answers
from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import Kind, Manifest, manifest
from threeloops_grader.authoring.regions import without
from threeloops_grader.classroom.similar.fingerprint import Fingerprint, fingerprint, given_names
from threeloops_grader.proposals.library import modules
from threeloops_grader.proposals.released import Function
from threeloops_grader.submissions.answer_cells import answer_of
from threeloops_grader.submissions.reading import find, read
from threeloops_grader.submissions.rebuild import rebuild
from threeloops_grader.submissions.submitted import BadSubmission

__all__ = ["ComparedAnswer", "Findings", "Pair", "compare"]

_ALIKE = 0.85
"""Two answers are listed if they share at least this much of the smaller one. See
tests/grader/classroom/test_similar.py."""
_LEAST_PARTS = 20
"""An answer with fewer parts beyond the stub is not compared: there are few ways to write it."""
_NOT_PARSED = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class ComparedAnswer:
    """One answer to an exercise. `owner` is a student of this class if `is_of_class`, or else names the source."""

    owner: str
    source: str
    fingerprint: Fingerprint = field(repr=False)
    is_of_class: bool = True


@dataclass(frozen=True)
class Pair:
    """Two answers that are alike. `share` is how much of the smaller answer also occurs in the larger one."""

    exercise: str
    first: ComparedAnswer
    second: ComparedAnswer
    share: float


@dataclass(frozen=True)
class Findings:
    """The result of comparing the answers of a class."""

    students: int
    pairs: tuple[Pair, ...]
    small: tuple[str, ...]
    """Exercises of which no answer is large enough to be compared."""
    faults: tuple[str, ...]
    """Submissions and answers that could not be read, with the reason."""


def compare(lab: Lab, folder: Path, earlier: Iterable[Path] = ()) -> Findings:
    """Compare the answers of the submissions in `folder`, with each other and with those of `earlier` folders.

    Pairs are in the order of the lab's exercises, the most alike first. Raises FileNotFoundError if a folder has no
    submissions.
    """
    trusted = manifest(lab)
    faults = list[str]()
    of_class = list(_submitted(folder, trusted, "", faults))
    of_earlier = [answer for at in earlier for answer in _submitted(at, trusted, f"{at}: ", faults)]
    pairs = list[Pair]()
    small = list[str]()
    for exercise in trusted.exercises:
        name = exercise.id
        stub = without(trusted.text(name), "SOLUTION")
        elsewhere = [*_ours(lab, trusted, name), *((owner, texts[name]) for owner, texts in of_earlier)]
        own = _answers([(owner, texts[name]) for owner, texts in of_class], stub, faults, is_of_class=True)
        others = _answers(elsewhere, stub, faults, is_of_class=False)
        if not own:
            small.append(name)
        pairs += _alike(name, own, [*others, *_library()])
    return Findings(len(of_class), tuple(pairs), tuple(small), tuple(faults))


def _submitted(folder: Path, trusted: Manifest, prefix: str, faults: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the owner and the answers, by exercise, of each submission that can be read."""
    for submission in find(folder, trusted.lab):
        try:
            notebook = rebuild(read(submission, folder), trusted).notebook
        except BadSubmission as error:
            faults.append(f"{prefix}{submission.student}: {error}")
            continue
        cells = {cell.id: cell.source for cell in notebook.cells if trusted.kind(cell) is Kind.SOLUTION}
        for cell in notebook.cells:
            if (answer := answer_of(cell.id)) in cells:
                cells[answer] += f"\n\n{cell.source}"
        yield prefix + submission.student, cells


def _ours(lab: Lab, trusted: Manifest, exercise: str) -> Iterator[tuple[str, str]]:
    """Yield the solution of an exercise, and the other right answers that the course has."""
    yield "the solution", trusted.text(exercise)
    yield from ((f"right/{answer.name}", answer.text) for answer in right_answers(lab) if answer.exercise == exercise)


def _answers(
    texts: Iterable[tuple[str, str]], stub: str, faults: list[str], *, is_of_class: bool
) -> list[ComparedAnswer]:
    """Return the answers that are still large enough to compare after the parts of the stub are removed."""
    given = given_names(stub)
    start = fingerprint(stub, given)
    answers = []
    for owner, text in texts:
        try:
            own = fingerprint(text, given).without(start)
        except _NOT_PARSED as error:
            reason = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
            faults.append(f"{owner}: an answer is not Python that can be compared: {reason[:200]}")
            continue
        if own.size >= _LEAST_PARTS:
            answers.append(ComparedAnswer(owner, text, own, is_of_class))
    return answers


@cache
def _library() -> tuple[ComparedAnswer, ...]:
    """Return the functions and classes of the library."""
    functions = []
    for module in modules():
        for node in module.tree.body:
            if isinstance(node, Function | ast.ClassDef):
                text = ast.get_source_segment(module.text, node) or ""
                own = fingerprint(text, {node.name})
                if own.size >= _LEAST_PARTS:
                    functions.append(ComparedAnswer(f"{module.name}.{node.name}", text, own, False))
    return tuple(functions)


def _alike(exercise: str, own: Sequence[ComparedAnswer], others: Sequence[ComparedAnswer]) -> list[Pair]:
    """Return the pairs that are alike: two answers of the class, or an answer of the class and another text."""
    candidates = [*itertools.combinations(own, 2), *itertools.product(own, others)]
    pairs = (
        Pair(exercise, first, second, first.fingerprint.share_with(second.fingerprint)) for first, second in candidates
    )
    return sorted((pair for pair in pairs if pair.share >= _ALIKE), key=lambda pair: -pair.share)
