"""Grade the mutants of a lab, and report for each whether it survives, or which visible or hidden test catches it."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import Manifest, manifest, test_title
from threeloops_grader.grading.grade import Options, grade_notebook
from threeloops_grader.grading.records import Record
from threeloops_grader.mutation.equivalent import equivalent_mutants
from threeloops_grader.mutation.mutate import Mutant, mutants
from threeloops_grader.sandbox.pool import Sandbox

__all__ = ["Verdict", "run"]


@dataclass(frozen=True)
class Verdict:
    """The verdict on a mutant. `caught_by` are the titles of the tests that it fails. `visibly` says whether the
    visible tests suffice.

    `equivalent` is the reason why no test can tell the mutant from the reference, if an author has given one.
    """

    mutant: Mutant
    caught_by: tuple[str, ...]
    visibly: bool
    equivalent: str = ""

    @property
    def survived(self) -> bool:
        return not self.caught_by and not self.equivalent


def run(
    lab: Lab,
    sandbox: Sandbox,
    *,
    only: str = "",
    jobs: int = 2,
    watch: Callable[[str, int, int], None] = lambda *_: None,
) -> list[Verdict]:
    """Grade every mutant of the reference answers, or only those of exercise `only` if it is named.

    Visible tests are tried first. Mutants that pass them meet the hidden ones. `watch` gets the current tests, the
    number of graded submissions, and their total. Raises LabError if the lab's list of equivalent mutants is out of
    date.
    """
    trusted = manifest(lab)
    wanted = [trusted.exercise(only)] if only else trusted.exercises
    made = {e.id: list(mutants(e.id, trusted.text(e.id))) for e in wanted}
    equivalent = equivalent_mutants(lab, made)
    verdicts = {
        key: Verdict(m, (), False, equivalent[key]) for m in _all(made) if (key := (m.exercise, m.fault)) in equivalent
    }
    for visible in (True, False):
        unsettled = {
            name: [m for m in of_exercise if not _is_settled(verdicts, m)] for name, of_exercise in made.items()
        }
        submissions = list(_together(unsettled))

        def grade(chosen: list[Mutant], visible: bool = visible) -> Record:
            return _grade(trusted, chosen, sandbox, jobs, visible=visible)

        with ThreadPoolExecutor(jobs) as workers:
            for done, record in enumerate(workers.map(grade, submissions)):
                watch("visible tests" if visible else "hidden tests", done + 1, len(submissions))
                for mutant in submissions[done]:
                    caught_by = _caught(record, trusted.exercise(mutant.exercise).tests)
                    verdicts[mutant.exercise, mutant.fault] = Verdict(mutant, caught_by, visible)
    return [verdicts[mutant.exercise, mutant.fault] for mutant in _all(made)]


def _is_settled(verdicts: dict[tuple[str, str], Verdict], mutant: Mutant) -> bool:
    verdict = verdicts.get((mutant.exercise, mutant.fault))
    return verdict is not None and not verdict.survived


def _all(made: dict[str, list[Mutant]]) -> Iterable[Mutant]:
    return (mutant for of_exercise in made.values() for mutant in of_exercise)


def _together(unsettled: dict[str, list[Mutant]]) -> Iterator[list[Mutant]]:
    """Yield one mutant of each exercise per submission, because exercises do not depend on each other."""
    for row in zip_longest(*unsettled.values()):
        yield [mutant for mutant in row if mutant is not None]


def _grade(trusted: Manifest, chosen: list[Mutant], sandbox: Sandbox, jobs: int, *, visible: bool) -> Record:
    notebook = trusted.lab.answered({mutant.exercise: mutant.text for mutant in chosen})
    return grade_notebook(notebook, trusted.lab, "mutant", Options(sandbox, jobs=jobs, visible=visible))


def _caught(record: Record, tests: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(test_title(t.name) for t in record.tests if t.name in tests and t.score < t.max_score)
