"""papermill's engine `walled`: stock papermill gives the verdicts of `threeloops grade`, and notes when cells ran."""

import nbformat
import papermill
import pytest
from grading import QUICK, fresh_course, grade, points, submission
from papermill.engines import papermill_engines
from papermill.exceptions import PapermillExecutionError
from threeloops_grader.grading.papermill_engine import WalledEngine
from threeloops_grader.grading.scoring import Report

papermill_engines.register("walled", WalledEngine)  # as the installed package's entry point does


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with fresh_course(tmp_path_factory.mktemp("papermill")) as lab:
        yield lab


def execute(lab, folder, **answers):
    """Execute a submission with papermill; returns papermill's error, the report, and the notebook that it wrote."""
    nbformat.write(submission(lab, **answers), folder / "submitted.ipynb")
    report = Report()
    error = None
    try:
        papermill.execute_notebook(
            folder / "submitted.ipynb",
            folder / "executed.ipynb",
            engine_name="walled",
            progress_bar=False,
            lab=lab,
            sandbox="none",
            limits=QUICK,
            report=report,
        )
    except PapermillExecutionError as caught:
        error = caught
    return error, report, nbformat.read(folder / "executed.ipynb", as_version=4)


def test_the_reference_earns_what_grade_gives(lab, tmp_path):
    error, report, executed = execute(lab, tmp_path)
    assert error is None
    expected = grade(lab, submission(lab), "none")
    assert [(test.name, test.score) for test in report.tests] == [(test.name, test.score) for test in expected.tests]
    tests = [cell for cell in executed.cells if cell.id in {test.name for test in report.tests}]
    assert len(tests) == len(report.tests) > 0
    assert all(cell.outputs and cell.metadata.papermill["duration"] is not None for cell in tests)
    assert {cell.metadata.papermill["status"] for cell in tests} == {"completed"}


def test_a_wrong_answer_is_papermills_error_and_the_rest_is_graded(lab, tmp_path):
    answers = {"mean": "def mean(values):\n    return 0.0"}
    error, report, executed = execute(lab, tmp_path, **answers)
    assert error is not None
    assert len(report.tests) == len(grade(lab, submission(lab), "none").tests)
    failed = {test.name for test in report.tests if test.score < test.max_score}
    marked = {cell.id for cell in executed.cells if cell.metadata.get("papermill", {}).get("exception")}
    assert failed <= marked
    assert 0 < len(failed) < len(report.tests)
    assert points(grade(lab, submission(lab, **answers), "none"))["mean"] == sum(
        test.score for test in report.tests if test.name.startswith("mean_")
    )


def test_a_lab_that_nobody_names_is_asked_for(lab, monkeypatch):
    monkeypatch.delenv("THREELOOPS_LAB", raising=False)
    with pytest.raises(ValueError, match="pass lab='01' or set THREELOOPS_LAB"):
        WalledEngine.execute_notebook(submission(lab), "python3")
