"""Search a lab for exercises whose points can be earned by copying."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import Exercise
from threeloops_grader.authoring.names import replays
from threeloops_grader.proposals.formulas import formulas
from threeloops_grader.proposals.library import from_library, importable
from threeloops_grader.proposals.released import Asked, Proposal, Released, head
from threeloops_grader.proposals.trial import Bench, Patience

__all__ = ["Leak", "Source", "find_leaks"]

Source = Literal["notebook", "ranks", "library"]
"""The origin of answers, and the parts that they are tried on. `notebook` and `ranks` both build answers from the
notebook. Only `ranks` tries the parts that run on ranks or a recorded disk, because each try takes seconds. The other
two try all other parts."""

_OF_LIBRARY = Patience(cpu_seconds=2, seconds=4)
"""Hundreds of functions are called with arguments that they were not made for."""


@dataclass(frozen=True)
class Leak:
    """A solution cell that earns points although it was built without understanding the exercise."""

    exercise: str
    points: float
    of: float
    text: str


def find_leaks(
    lab: Lab, source: Source = "notebook", watch: Callable[[str], None] = lambda _: None
) -> tuple[Lab, list[Leak]]:
    """Return the lab, and the best proposal for each exercise in which a proposal earns points. `watch` is called with
    the lab's name before the search."""
    watch(lab.slug)
    released = Released.read(lab)
    leaking = []
    patience, modules = (_OF_LIBRARY, importable(lab)) if source == "library" else (None, [])
    with Bench(released.trusted, patience, modules, alone=source == "library") as bench:
        for asked in released.exercises:
            exercise = _tried(released, released.trusted.exercise(asked.id), source)
            if leak := _best(bench, exercise, asked, list(_proposals(released, asked, exercise, source))):
                leaking.append(leak)
    return lab, leaking


def _tried(released: Released, exercise: Exercise, source: Source) -> Exercise:
    """Return the exercise with only the parts to try: those that run on ranks or a recorded disk if the source is
    `ranks`, and all others if it is not."""
    text = released.trusted.text
    on_ranks = source == "ranks"
    parts = (p for p in exercise.parts if released.runs_elsewhere(ast.parse(text(p.test))) == on_ranks)
    return Exercise(exercise.id, tuple(parts))


def _proposals(released: Released, asked: Asked, exercise: Exercise, source: Source) -> Iterator[Proposal]:
    if not exercise.tests:
        return
    kernels = all(replays(released.trusted.text(test)) for test in exercise.tests)
    if source == "library":
        yield from from_library(released, asked, kernels=kernels)
    elif not kernels:  # a notebook whose kernels are all still to be written has none to copy
        for text in formulas(released, asked):
            yield Proposal(f"{released.oracle}\n\n{text}" if released.oracle else text)


def _best(bench: Bench, exercise: Exercise, asked: Asked, proposals: list[Proposal]) -> Leak | None:
    texts = [proposal.text for proposal in proposals]
    outcomes = list(bench.earned(exercise, texts))
    variants = [
        text for proposal, o in zip(proposals, outcomes, strict=True) if o.returned for text in proposal.variants
    ]
    passed = [o.passed for o in (*outcomes, *bench.earned(exercise, variants))]
    if not any(passed):
        return None
    trivial = frozenset().union(*(o.passed for o in bench.earned(exercise, list(_trivial(asked)))))
    points = {part.test: part.points for part in exercise.parts}
    scores = [sum(points[test] for test in tests - trivial) for tests in passed]
    best = max(range(len(scores)), key=scores.__getitem__)
    return Leak(exercise.id, scores[best], exercise.points, (texts + variants)[best]) if scores[best] else None


def _trivial(asked: Asked) -> Iterator[str]:
    """Yield answers that copy nothing. If one of them passes a part, that part does not show a leak."""
    for function in asked.functions:
        arguments = [parameter.arg for parameter in function.args.args]
        for value in ("None", "0", "[]", "()", "False", "True", *arguments, *(f"list({name})" for name in arguments)):
            yield asked.answer(function.name, f"{head(function)}:\n    return {value}")
