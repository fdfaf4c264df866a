"""Setup cells tagged `oracle`: graded runs execute them on the grader's side alone."""

import pytest
from grading import SANDBOXES, fresh_course, grade, needs, points, said, submission
from threeloops_grader.authoring.lint import lint
from toy_course import make_course

ORACLE = """\
# %% tags=["setup", "oracle"] nbgrader={"grade": false, "grade_id": "oracle", "locked": true, "schema_version": 3, "solution": false, "task": false}
def middle(values):
    return float(np.mean(values))


"""  # noqa: E501
USER = (
    ORACLE.replace('["setup", "oracle"]', '["setup"]')
    .replace('"oracle"', '"user"')
    .replace("def middle(values):\n    return float(np.mean(values))", "MIDDLE = middle([1.0])")
)
HONEST = (
    "def mean(values):\n    if not values:\n        raise ValueError('values')\n    return sum(values) / len(values)"
)


def make_course_with_oracle(folder):
    lab = make_course(folder)
    text = lab.source.read_text()
    text = text.replace('# %% tags=["demo"]\npredict(', f'{ORACLE}# %% tags=["demo"]\npredict(', 1)
    text = text.replace("check.close(mean(SAMPLES), 3.0,", "check.close(mean(SAMPLES), middle(SAMPLES),", 1)
    lab.source.write_text(text)
    return lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with fresh_course(tmp_path_factory.mktemp("oracles"), make_course_with_oracle) as lab:
        yield lab


def test_tests_may_use_it(lab):
    needs(SANDBOXES[0])
    record = grade(lab, submission(lab, mean=HONEST), SANDBOXES[0])
    assert points(record) == {"mean": 40.0, "rescale": 60.0}, said(record)
    assert lint(lab) == []


@pytest.mark.parametrize(
    "answer",
    [
        "def mean(values):\n    return middle(values)",
        "def mean(values):\n    import __main__\n    return __main__.middle(values)",
        "def mean(values):\n    from threeloops_main import lookup\n    return lookup('middle')(values)",
    ],
)
def test_an_answer_cannot_call_it(lab, answer):
    needs(SANDBOXES[0])
    record = grade(lab, submission(lab, mean=answer), SANDBOXES[0])
    assert points(record) == {"mean": 0.0, "rescale": 60.0}, said(record)
    assert "middle" in said(record)


def test_it_is_there_again_after_an_answer_has_ended_its_process(lab):
    needs(SANDBOXES[0])
    answers = {"before": "import atexit", "mean": "import os\n\ndef mean(values):\n    os._exit(1)"}
    record = grade(lab, submission(lab, **answers), SANDBOXES[0])
    assert points(record) == {"mean": 0.0, "rescale": 60.0}, said(record)


def test_a_setup_cell_that_needs_it_is_named(lab):
    text = lab.source.read_text()
    lab.source.write_text(text.replace('# %% tags=["demo"]\npredict(', USER + '# %% tags=["demo"]\npredict(', 1))
    try:
        assert any("cell user uses middle" in fault for fault in lint(lab)), lint(lab)
    finally:
        lab.source.write_text(text)
