"""Every lab, graded behind the wall: the reference earns everything, the untouched lab nothing, each wrong answer loses
its own exercise and no other, with a message that names its own fault."""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import chain, count, islice, zip_longest
from typing import Any, TypeVar

import nbformat
import pytest
from grading import submission
from threeloops_grader.authoring.answers import Answer, KnownWrong, right_answers, wrong_answers
from threeloops_grader.authoring.labs import Lab, all_labs
from threeloops_grader.authoring.manifest import Exercise, manifest
from threeloops_grader.course.course import submissions
from threeloops_grader.grading.grade import Options, grade_notebook
from threeloops_grader.release.release import stale
from threeloops_grader.sandbox import bwrap
from threeloops_grader.sandbox.pool import Sandbox, close_pools

T = TypeVar("T")
SomeAnswer = TypeVar("SomeAnswer", bound=Answer)
LABS = {lab.slug: lab for lab in all_labs()}
BOUNDED = {
    "02_memory_hierarchy": ("transpose", "matmul"),
    "03_triton_fusion": ("softmax", "cross_entropy"),
    "04_flash_attention": ("one_head", "masked"),
}
"""Exercises whose checks ask how a kernel works, not only what it returns."""
OF_EACH_KIND = ("00_start_here", "02_memory_hierarchy", "12_pipeline_parallel", "13_durable_checkpoints")
"""Labs of plain functions, of kernels, of programs with many ranks, and of files that survive power cuts."""


def by_exercise(lab: Lab, answers: list[SomeAnswer]) -> dict[str, list[SomeAnswer]]:
    return {each.id: [answer for answer in answers if answer.exercise == each.id] for each in manifest(lab).exercises}


def first_turn(exercises: int) -> tuple[int, int]:
    """Submissions of the first turn, and exercises that are right in each. Every exercise is right three times, and
    wrong at least twice: a lab of four needs six submissions with two right ones, and others one for each exercise."""
    return (6, 2) if exercises == 4 else (exercises, 3)


def combined(answers: dict[str, list[T]]) -> Iterator[dict[str, T]]:
    """Several wrong answers per submission, at most one for each exercise, and none for the exercises whose turn it is
    to be right; after the first turn, that is one.

    Three answers in a submission take a third of the time of one each. No wrong one can hide behind another: the
    message of each must name its own fault. A lab of three exercises has none to leave: there all are wrong.
    """
    waiting = {name: list(several) for name, several in answers.items() if several}
    submissions, right = first_turn(len(answers))
    for number in count():
        if not waiting:
            return
        left = in_turn(list(answers), number, right if number < submissions else 1)
        chosen = waiting.keys() - left or waiting.keys()  # so that every submission places at least one
        yield {name: waiting[name].pop(0) for name in answers if name in chosen}
        waiting = {name: several for name, several in waiting.items() if several}


def in_turn(names: list[str], number: int, many: int) -> set[str]:
    """`many` neighbours among the exercises, in a ring, of which the first is the one whose turn it is. Pairs do not
    overlap, so that all come up equally often."""
    first = number * many if many == 2 else number
    return {names[(first + i) % len(names)] for i in range(many)}


def options(lab: Lab, sandbox: Sandbox) -> Options:
    """Ten times the time that the lab gives a submission: these tests are about points, on however busy a machine.

    `make course` grades the reference of each lab within its own limits.
    """
    own = lab.limits
    seconds = {name: 10 * getattr(own, name) for name in ("cell_seconds", "test_seconds", "notebook_seconds")}
    return Options(sandbox, limits=replace(own, **seconds))


@pytest.fixture(scope="module")
def warm():
    """The lab whose warm processes are there."""
    yield []
    close_pools()


@pytest.fixture(autouse=True)
def one_lab_at_a_time(request, warm):
    """End the warm processes of the lab before: one worker gets all tests of a lab (conftest.py), in one stretch."""
    slug = request.node.callspec.params.get("slug") if hasattr(request.node, "callspec") else None
    if slug is not None and [slug] != warm:
        close_pools()
        warm[:] = [slug]


def is_first_turn(lab: Lab, number: int) -> bool:
    """Whether submission `number` is one of those in which exercises are right among wrong answers to all others.

    Every run grades these, with three right and two to five wrong answers to each exercise. `make test-all` grades the
    rest as well, and `threeloops test LAB` those of one lab."""
    return number < first_turn(len(manifest(lab).exercises))[0]


@dataclass(frozen=True)
class Tried:
    """A submission: some exercises answered, some as they were released, and the reference for the rest."""

    lab: Lab
    wrong: dict[str, KnownWrong]
    right: dict[str, Answer]
    undone: list[Exercise]
    """Costs no time to grade."""

    def notebook(self) -> nbformat.NotebookNode:
        released = {cell.id: cell.source for cell in nbformat.read(self.lab.released, as_version=4).cells}
        texts = {each.id: released[each.id] for each in self.undone}
        texts |= {answer.exercise: answer.text for answer in self.answers}
        return submission(self.lab, **texts)

    @property
    def answers(self) -> list[Answer]:
        return [*self.wrong.values(), *self.right.values()]


def wrong_ones(lab: Lab) -> Iterator[Tried]:
    """Of the first turn, in which each exercise is right three times, among wrong answers to all but two others; and
    of those after it, with nothing but wrong answers."""
    right = by_exercise(lab, right_answers(lab))
    for number, wrong in enumerate(combined(by_exercise(lab, wrong_answers(lab)))):
        others = [each for each in manifest(lab).exercises if each.id not in wrong]
        placed = {each.id: right[each.id].pop(0) for each in others if is_first_turn(lab, number) and right[each.id]}
        yield Tried(lab, wrong, placed, [each for each in others if each.id not in placed])


def right_ones(lab: Lab, placed: Collection[str]) -> Iterator[Tried]:
    """Of the right answers that are not among wrong ones, the next of each exercise; the other exercises are undone."""
    left = by_exercise(lab, [answer for answer in right_answers(lab) if answer.name not in placed])
    for answers in zip_longest(*left.values()):
        right = {answer.exercise: answer for answer in answers if answer}
        yield Tried(lab, {}, right, [each for each in manifest(lab).exercises if each.id not in right])


def submissions_of(lab: Lab) -> tuple[list[Any], list[Any]]:
    """Parameters of the two tests that grade a lab's wrong and right answers."""
    wrong = list(wrong_ones(lab))
    right = right_ones(lab, {answer.name for each in wrong for answer in each.right.values()})
    return [
        pytest.param(
            lab.slug, each, id=f"{lab.slug}-{number}", marks=[] if is_first_turn(lab, number) else [pytest.mark.slow]
        )
        for number, each in enumerate(wrong)
    ], [pytest.param(lab.slug, each, id=f"{lab.slug}-{number}") for number, each in enumerate(right)]


WRONG, RIGHT = (list(chain(*each)) for each in zip(*map(submissions_of, LABS.values()), strict=True))


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    """bubblewrap where it works; under CI it must."""
    reason = bwrap.why_not()
    if reason and os.environ.get("THREELOOPS_CI"):
        pytest.fail(f"CI grades in a sandbox, and {reason}")
    return "none" if reason else "bwrap"


def test_labs_is_exactly_what_solutions_generates():
    assert stale(list(LABS.values())) == []


@pytest.mark.slow  # `make course` grades these two, and the reference, in every run of CI
@pytest.mark.parametrize("kind", ["untouched", "half_done"])
@pytest.mark.parametrize("slug", LABS)
def test_an_unfinished_submission_earns_exactly_its_points(slug, kind, sandbox):
    lab = LABS[slug]
    notebook, points = submissions(lab)[kind]
    record = grade_notebook(notebook, lab, kind, options(lab, sandbox))
    assert (record.status, record.score, record.max_score) == ("graded", points, 100.0), record
    assert record.notes == []


@pytest.mark.parametrize(
    "slug", [slug if slug in OF_EACH_KIND else pytest.param(slug, marks=pytest.mark.slow) for slug in LABS]
)
def test_the_reference_also_earns_everything_without_a_sandbox(slug):
    lab = LABS[slug]
    assert grade_notebook(lab.master(), lab, "reference", options(lab, "none")).score == 100.0


@pytest.mark.parametrize(("slug", "tried"), WRONG)
def test_a_wrong_answer_loses_its_own_exercise_and_no_other(slug, tried: Tried, sandbox):
    lab = LABS[slug]
    trusted = manifest(lab)
    record = grade_notebook(tried.notebook(), lab, "wrong", options(lab, sandbox))
    lost = {test for each in tried.wrong.values() for test in each.lost(trusted.exercise(each.exercise).tests)}
    lost |= {test for each in tried.undone for test in each.tests}
    assert {test.name: test.score for test in record.tests} == {
        part.test: (0.0 if part.test in lost else part.points) for each in trusted.exercises for part in each.parts
    }, [answer.place for answer in tried.answers]
    for each in tried.wrong.values():
        tests = [test for test in record.tests if test.name in trusted.exercise(each.exercise).tests]
        assert each.expect in "\n".join(test.output for test in tests), each.place
        only_hidden = all(test.in_hidden for test in tests if test.name in lost)
        assert only_hidden == each.only_hidden, f"{each.place}: whether only hidden tests catch it"


@pytest.mark.parametrize(("slug", "tried"), RIGHT)
def test_another_right_answer_earns_everything(slug, tried: Tried, sandbox):
    """Whatever a check demands, it demands of the result and not of the way, and of no other exercise."""
    record = grade_notebook(tried.notebook(), LABS[slug], "right", options(LABS[slug], sandbox))
    lost = {test.name: test.output for test in record.tests if test.score != test.max_score}
    undone = {test for each in tried.undone for test in each.tests}
    answers = [answer.place for answer in tried.answers]
    assert {name: output for name, output in lost.items() if name not in undone} == {}, answers
    assert undone <= lost.keys()
    assert record.notes == []


def test_every_wrong_and_every_right_answer_is_graded_once():
    tried = [each.values[1] for each in (*WRONG, *RIGHT)]
    graded = sorted((each.lab.slug, answer.name) for each in tried for answer in each.answers)
    assert graded == sorted(
        (lab.slug, answer.name) for lab in LABS.values() for answer in (*wrong_answers(lab), *right_answers(lab))
    )


@pytest.mark.parametrize("slug", LABS)
def test_every_run_grades_three_right_and_two_wrong_answers_to_each_exercise(slug):
    first = islice(wrong_ones(LABS[slug]), first_turn(len(manifest(LABS[slug]).exercises))[0])
    right, wrong = zip(*((tried.right, tried.wrong) for tried in first), strict=True)
    for each in manifest(LABS[slug]).exercises:
        assert sum(each.id in answers for answers in right) == 3
        assert sum(each.id in answers for answers in wrong) >= 2


@pytest.mark.parametrize("exercise", [f"{lab}/{name}" for lab, names in BOUNDED.items() for name in names])
def test_an_exercise_that_bounds_its_tiles_has_three_other_right_answers(exercise):
    lab, name = exercise.split("/")
    assert sum(answer.exercise == name for answer in right_answers(LABS[lab])) >= 3


@pytest.mark.parametrize("counts", [(), (3,), (0,), (2, 2), (5, 0), (1, 7), (3, 3, 3, 3, 3), (0, 9, 1, 0, 4)], ids=str)
def test_every_wrong_answer_of_any_number_of_exercises_stands_in_exactly_one_submission(counts):
    wrong = {f"exercise_{i}": [f"{i}_{n}" for n in range(many)] for i, many in enumerate(counts)}
    made = list(islice(combined(wrong), 1 + sum(counts)))
    placed = [(name, answer) for submission in made for name, answer in submission.items()]
    assert sorted(placed) == sorted((name, answer) for name, answers in wrong.items() for answer in answers)
    assert all(0 < len(submission) <= max(1, len(counts) - 1) for submission in made[len(counts) :])
    if len(counts) > 3:
        assert all(0 < len(submission) <= len(counts) - 3 for submission in made[: len(counts)])
