"""Every lab, graded behind the wall: the reference earns everything, the untouched lab nothing, each wrong answer loses
its own exercise and no other, with a message that names its own fault."""

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import nbformat
import pytest
from lab_source import expected_words

from grader.course import submissions
from grader.grade import Options, grade_notebook
from grader.labs import Lab, all_labs
from grader.lint import lint
from grader.manifest import manifest
from grader.release import stale
from grader.sandbox import bwrap
from grader.sandbox.pool import Sandbox

LABS = {lab.slug: lab for lab in all_labs()}
BOUNDED = {
    "02_memory_hierarchy": ("coalescing", "tiles"),
    "03_triton_fusion": ("online_softmax", "cross_entropy"),
    "04_flash_attention": ("flash", "window"),
}
"""Exercises whose checks ask how a kernel works, not only what it returns."""


def together(lab: Lab, folder: Path) -> Iterator[dict[str, Path]]:
    """Answers by exercise, one submission each; every submission leaves one exercise in turn as the reference has it.

    Three answers per submission cost a third of the time of one each. No wrong one can hide behind another: the message
    of each must name its own fault.
    """
    exercises = [each.id for each in manifest(lab).exercises]
    waiting = {name: sorted(folder.glob(f"{name}__*.py")) for name in exercises}
    for turn in count():
        if not any(waiting.values()):
            return
        untouched = exercises[turn % len(exercises)]
        if chosen := {name: files.pop(0) for name, files in waiting.items() if files and name != untouched}:
            yield chosen


WRONG, RIGHT = (
    [
        pytest.param(lab.slug, chosen, id=f"{lab.slug}-{number}")
        for lab in LABS.values()
        for number, chosen in enumerate(together(lab, lab.folder / kind))
    ]
    for kind in ("wrong", "right")
)


def submission(lab: Lab, answers: dict[str, Path]) -> nbformat.NotebookNode:
    """The reference with some answers replaced by those of files."""
    notebook = nbformat.from_dict(lab.master())
    for name, path in answers.items():
        exercise = manifest(lab).exercise(name)
        next(c for c in notebook.cells if c.id == exercise.id).source = path.read_text()
    return notebook


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    """bubblewrap where it works; under CI it must."""
    reason = bwrap.why_not()
    if reason and os.environ.get("THREELOOPS_CI"):
        pytest.fail(f"CI grades in a sandbox, and {reason}")
    return "none" if reason else "bwrap"


@pytest.mark.parametrize("slug", LABS)
def test_the_source_keeps_the_rules(slug):
    assert lint(LABS[slug]) == []


def test_labs_is_exactly_what_solutions_generates():
    assert stale(list(LABS.values())) == []


@pytest.mark.parametrize("kind", ["reference", "untouched", "half_done"])
@pytest.mark.parametrize("slug", LABS)
def test_three_submissions_earn_exactly_their_points(slug, kind, sandbox):
    lab = LABS[slug]
    notebook, points = submissions(lab)[kind]
    record = grade_notebook(notebook, lab, kind, Options(sandbox))
    assert (record.status, record.score, record.max_score) == ("graded", points, 100.0), record
    assert record.notes == []


@pytest.mark.parametrize("slug", LABS)
def test_the_reference_also_earns_everything_without_a_sandbox(slug):
    lab = LABS[slug]
    assert grade_notebook(lab.master(), lab, "reference", Options("none")).score == 100.0


@pytest.mark.parametrize(("slug", "wrong"), WRONG)
def test_a_wrong_answer_loses_its_own_exercise_and_no_other(slug: str, wrong: dict[str, Path], sandbox):
    lab = LABS[slug]
    trusted = manifest(lab)
    record = grade_notebook(submission(lab, wrong), lab, "wrong", Options(sandbox))
    assert {test.name: test.score for test in record.tests} == {
        each.test: (0.0 if each.id in wrong else each.points) for each in trusted.exercises
    }, [str(path.name) for path in wrong.values()]
    said = {test.name: test.output for test in record.tests}
    for name, path in wrong.items():
        assert expected_words(path) in said[trusted.exercise(name).test], path.name


@pytest.mark.parametrize(("slug", "right"), RIGHT)
def test_another_right_answer_earns_everything(slug: str, right: dict[str, Path], sandbox):
    """Whatever a check demands, it demands of the result and not of the way."""
    record = grade_notebook(submission(LABS[slug], right), LABS[slug], "right", Options(sandbox))
    lost = {test.name: test.output for test in record.tests if test.score != test.max_score}
    assert lost == {}, [path.name for path in right.values()]
    assert record.notes == []


def test_every_wrong_and_every_right_answer_is_graded():
    for kind, graded in (("wrong", WRONG), ("right", RIGHT)):
        files = [path for lab in LABS.values() for path in (lab.folder / kind).glob("*.py")]
        assert sorted(files) == sorted(path for each in graded for path in each.values[1].values())


@pytest.mark.parametrize("exercise", [f"{lab}/{name}" for lab, names in BOUNDED.items() for name in names])
def test_an_exercise_that_bounds_its_tiles_has_three_other_right_answers(exercise):
    lab, name = exercise.split("/")
    assert len(list(LABS[lab].right.glob(f"{name}__*.py"))) >= 3
