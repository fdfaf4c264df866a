"""Every lab, graded behind the wall: the reference earns everything, the untouched lab nothing, each wrong answer loses
its own exercise and no other, with a message that names its own fault."""

import os
from pathlib import Path

import nbformat
import pytest
from lab_source import expected_words

from grader.course import submissions
from grader.grade import Options, grade_notebook
from grader.labs import all_labs
from grader.lint import lint
from grader.manifest import manifest
from grader.release import stale
from grader.sandbox import bwrap
from grader.sandbox.pool import Sandbox

LABS = {lab.slug: lab for lab in all_labs()}
WRONG = [(lab.slug, path) for lab in LABS.values() for path in sorted(lab.wrong.glob("*.py"))]


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


@pytest.mark.parametrize(("slug", "path"), WRONG, ids=[p.stem for _, p in WRONG])
def test_a_wrong_answer_loses_its_own_exercise_and_no_other(slug: str, path: Path, sandbox):
    lab = LABS[slug]
    trusted, name = manifest(lab), path.stem.partition("__")[0]
    own = trusted.exercise(name)
    notebook = nbformat.from_dict(lab.master())
    next(c for c in notebook.cells if c.id == own.id).source = path.read_text()
    record = grade_notebook(notebook, lab, path.stem, Options(sandbox))
    assert {t.name: t.score for t in record.tests} == {
        e.test: (0.0 if e == own else e.points) for e in trusted.exercises
    }
    message = next(t.output for t in record.tests if t.name == own.test)
    assert expected_words(path) in message


@pytest.mark.parametrize("slug", LABS)
def test_every_exercise_has_three_wrong_answers(slug):
    lab = LABS[slug]
    for exercise in manifest(lab).exercises:
        assert len(list(lab.wrong.glob(f"{exercise.id}__*.py"))) >= 3
