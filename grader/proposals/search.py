"""Search a lab for exercises whose points can be earned by copying."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from grader.authoring.labs import Lab
from grader.authoring.manifest import Exercise
from grader.authoring.names import replays
from grader.proposals.formulas import formulas
from grader.proposals.library import from_library
from grader.proposals.released import Asked, Released, head
from grader.proposals.trial import Bench, Patience

__all__ = ["Leak", "find_leaks"]

_OF_LIBRARY = Patience(cpu_seconds=3, seconds=10)
"""Hundreds of functions are called with arguments that they were not made for."""


@dataclass(frozen=True)
class Leak:
    """The text of a solution cell that earns points without an idea of the exercise."""

    exercise: str
    points: float
    of: float
    text: str


def find_leaks(
    lab: Lab, library: bool = False, watch: Callable[[str], None] = lambda _: None
) -> tuple[Lab, list[Leak]]:
    """The lab, and the best proposal of each exercise that earns anything: cut from the notebook, or with `library`
    taken from the library. `watch` gets the lab's name before its search."""
    watch(lab.slug)
    released = Released.read(lab)
    found = []
    with Bench(released.trusted, _OF_LIBRARY if library else None) as bench:
        for asked in released.exercises:
            exercise = released.trusted.exercise(asked.id)
            if leak := _best(bench, exercise, asked, list(_proposals(released, asked, exercise, library))):
                found.append(leak)
    return lab, found


def _proposals(released: Released, asked: Asked, exercise: Exercise, library: bool) -> Iterator[str]:
    tests = [cell.source for cell in released.trusted.master.cells if cell.id in exercise.tests]
    kernels = all(replays(test) for test in tests)
    if library:
        ranks = all("on_cluster" in test for test in tests)
        yield from from_library(released, asked, kernels=kernels, ranks=ranks)
    elif not kernels:  # no kernel can be cut from a notebook whose kernels are all to be written
        yield from formulas(released, asked)


def _best(bench: Bench, exercise: Exercise, asked: Asked, texts: list[str]) -> Leak | None:
    passed = list(bench.earned(exercise, texts))
    if not any(passed):
        return None
    trivial = frozenset().union(*bench.earned(exercise, list(_trivial(asked))))
    points = {part.test: part.points for part in exercise.parts}
    scores = [sum(points[test] for test in tests - trivial) for tests in passed]
    best = max(range(len(scores)), key=scores.__getitem__)
    return Leak(exercise.id, scores[best], exercise.points, texts[best]) if scores[best] else None


def _trivial(asked: Asked) -> Iterator[str]:
    """Answers that copy nothing. A part that one of them passes, with documented errors left out, proves nothing."""
    for function in asked.functions:
        arguments = [each.arg for each in function.args.args]
        for value in ("None", "0", "[]", "()", "False", "True", *arguments, *(f"list({name})" for name in arguments)):
            yield asked.answer(function.name, f"{head(function)}:\n    return {value}")
