"""`threeloops test`: grade the right, wrong and half-done answers of a lab, many of them in one submission."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import nbformat
from nbformat import NotebookNode

from threeloops_grader.authoring.answers import Answer, KnownWrong, right_answers, wrong_answers
from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.lint import require_sound
from threeloops_grader.authoring.manifest import Manifest, manifest, split_test_id
from threeloops_grader.grading.grade import Options, grade_notebook
from threeloops_grader.grading.records import Record
from threeloops_grader.release.release import release
from threeloops_grader.sandbox.pool import Sandbox

__all__ = ["Trial", "trials"]


@dataclass(frozen=True)
class Trial:
    """One submission: its contents, the number of answers that it tries, and its faults."""

    name: str
    answers: int
    faults: tuple[str, ...]


def trials(lab: Lab, sandbox: Sandbox) -> Iterator[Trial]:
    """Release the lab, then grade its reference, the untouched and the half-done lab, and its other right answers
    and its wrong ones: one of each exercise per submission, because exercises do not depend on each other.

    Raises LabError if the source breaks a rule. The message lists all broken rules.
    """
    require_sound(lab)
    release([lab])
    trusted = manifest(lab)
    first = {exercise.id for exercise in trusted.exercises[: len(trusted.exercises) // 2]}
    untouched = {cell.id: cell.source for cell in nbformat.read(lab.released, as_version=4).cells}
    for name, done in (("the reference", None), ("the untouched lab", set()), ("the lab half done", first)):
        remaining = {exercise.id for exercise in trusted.exercises if done is not None and exercise.id not in done}
        notebook = lab.answered({exercise: untouched[exercise] for exercise in remaining})
        lost = {test for exercise in trusted.exercises if exercise.id in remaining for test in exercise.tests}
        yield Trial(name, 1, tuple(_faults(_grade(trusted, notebook, sandbox), lost, {})))
    for kind, answers in (("right", right_answers(lab)), ("wrong", wrong_answers(lab))):
        for number, chosen in enumerate(_together(trusted, answers), start=1):
            texts = {exercise: answer.text for exercise, answer in chosen.items()}
            undone = [exercise for exercise in trusted.exercises if exercise.id not in chosen]  # costs no time to grade
            texts |= {exercise.id: untouched[exercise.id] for exercise in undone}
            wrong = [answer for answer in chosen.values() if isinstance(answer, KnownWrong)]
            record = _grade(trusted, lab.answered(texts), sandbox)
            lost = {test for answer in wrong for test in answer.lost(trusted.exercise(answer.exercise).tests)}
            lost |= {test for exercise in undone for test in exercise.tests}
            faults = list(_faults(record, lost, chosen))
            faults += [fault for answer in wrong if (fault := _unsaid(trusted, record, answer))]
            yield Trial(f"{kind} answers {number}", len(chosen), tuple(faults))


def _together(trusted: Manifest, answers: Sequence[Answer]) -> Iterator[dict[str, Answer]]:
    by_exercise = [[answer for answer in answers if answer.exercise == exercise.id] for exercise in trusted.exercises]
    for row in zip_longest(*by_exercise):
        yield {answer.exercise: answer for answer in row if answer is not None}


def _grade(trusted: Manifest, notebook: NotebookNode, sandbox: Sandbox) -> Record:
    return grade_notebook(notebook, trusted.lab, "trial", Options(sandbox))


def _faults(record: Record, lost: set[str], answers: Mapping[str, Answer]) -> Iterator[str]:
    """Yield a fault for each test that gave points but should not have, or did not but should have, with the place of
    the answer if any."""
    for test in record.tests:
        answer = answers.get(split_test_id(test.name)[0])
        where = f"{answer.place}: {test.name}" if answer else test.name
        if test.name in lost and test.score:
            yield f"{where} gives {test.score:g} points, expected none"
        elif test.name not in lost and test.score != test.max_score:
            yield f"{where} gives {test.score:g} of {test.max_score:g} points: {test.output}"


def _unsaid(trusted: Manifest, record: Record, wrong: KnownWrong) -> str:
    tests = [test for test in record.tests if test.name in trusted.exercise(wrong.exercise).tests]
    output = "\n".join(test.output for test in tests)
    if wrong.expect not in output:
        return f"{wrong.place} expects {wrong.expect!r}, and the tests said: {output.strip() or 'nothing'}"
    hidden = all(test.in_hidden for test in tests if test.score < test.max_score)
    if hidden and not wrong.only_hidden:
        return f"{wrong.place} fails no visible test: show its case, or say 'caught: hidden' at its top"
    if wrong.only_hidden and not hidden:
        return f"{wrong.place} says 'caught: hidden', and fails a visible test: take the line out"
    return ""
