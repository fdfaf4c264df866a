"""`threeloops class grade --jobs` executes submissions side by side. nbgrader gives them the points of a serial run.

It stays the only writer of the gradebook.
"""

import json
import shutil
from pathlib import Path

import nbformat
import pytest
from attack import SUBMISSIONS
from grading import REPOSITORY, fresh_course, hand_in, nbgrader, needs, submission
from threeloops_grader.classroom import ahead as executing
from threeloops_grader.classroom.ahead import execute_ahead
from threeloops_grader.course.course import submissions
from threeloops_grader.grading.records import Record
from threeloops_grader.release.release import release
from toy_course import make_course

PRINTS_AND_FAILS = "print('one'); import sys; print('two', file=sys.stderr); raise ValueError('three')"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A course with every odd submission that the tests know, and four that are not odd."""
    needs("bwrap")
    with fresh_course(tmp_path_factory.mktemp("ahead")) as lab:
        shutil.copy(REPOSITORY / "nbgrader_config.py", lab.root)
        release([lab])
        for name, (notebook, _) in submissions(lab).items():
            hand_in(notebook, lab, name)
        hand_in(submission(lab, before=PRINTS_AND_FAILS), lab, "prints")
        for name, module in SUBMISSIONS.items():
            folder = lab.root / "submitted" / name / lab.slug
            folder.mkdir(parents=True)
            module.write(folder, lab)
        done = nbgrader(lab.root, "generate_assignment", lab.slug, "--force")
        assert done.returncode == 0, done.stderr
        yield lab


def ahead(lab, jobs: int, *, again: bool = False) -> Path | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THREELOOPS_ROOT", str(lab.root))
        return execute_ahead(lab, jobs, "auto", again=again)


def autograde(lab, *more: str) -> tuple[str, dict[str, list]]:
    """Run it, and return the exported grades and the cells of every graded notebook."""
    log = nbgrader(lab.root, "autograde", lab.slug, *more).stderr
    assert "nobody's points were changed" not in log, log
    nbgrader(lab.root, "export", "--to", "grades.csv")
    notebooks = {
        path.parent.parent.name: nbformat.read(path, as_version=4).cells
        for path in sorted((lab.root / "autograded").glob(f"*/{lab.slug}/{lab.slug}.ipynb"))
    }
    return (lab.root / "grades.csv").read_text(), notebooks


def without_pictures(notebooks: dict[str, list]) -> dict[str, list]:
    """One of the submissions draws random ones."""
    for cells in notebooks.values():
        for output in (output for cell in cells for output in cell.get("outputs", [])):
            output.get("data", {}).pop("image/png", None)
    return notebooks


def stored(lab) -> list[Path]:
    return sorted((lab.root / "submitted" / ".threeloops" / lab.slug / "executed").iterdir())


def test_a_class_that_was_executed_side_by_side_has_the_points_and_notebooks_of_a_serial_run(lab):
    records = ahead(lab, 2)
    assert records == lab.root / "submitted" / ".threeloops"
    before = {path: path.stat().st_mtime_ns for path in stored(lab)}
    ahead(lab, 2)
    assert before == {path: path.stat().st_mtime_ns for path in stored(lab)}, "what is executed is not executed again"
    grades, notebooks = autograde(lab, f"--WalledExecute.executed={records}")
    serial_grades, serial_notebooks = autograde(lab, "--force")
    assert "reference" in grades and len(notebooks) > 4
    assert grades == serial_grades
    assert without_pictures(notebooks) == without_pictures(serial_notebooks)


def test_nbgrader_takes_an_executed_notebook_only_for_exactly_this_submission(lab):
    """The kept result says 7 points, so these points show where it is used."""
    records = ahead(lab, 2, again=True)
    for path in stored(lab):
        saved = json.loads(path.read_text())
        for cell in saved["cells"].values():
            for output in cell["outputs"]:
                if output["output_type"] == "execute_result":
                    output["data"]["text/plain"] = "7.0"
        path.write_text(json.dumps(saved))
    words = ("autograde", lab.slug, "--student=reference", "--force", f"--WalledExecute.executed={records}")
    assert score(lab, *words) == 21.0
    notebook = lab.root / "submitted" / "reference" / lab.slug / f"{lab.slug}.ipynb"
    notebook.write_text(notebook.read_text() + "\n")
    assert score(lab, *words) == 100.0, "another file is executed"


def score(lab, *words: str) -> float:
    done = nbgrader(lab.root, *words)
    assert done.returncode == 0, done.stderr
    nbgrader(lab.root, "export", "--to", "grades.csv")
    (row,) = [line for line in (lab.root / "grades.csv").read_text().splitlines() if ",reference," in line]
    return float(row.split(",")[-2])


def test_a_name_that_the_terminal_cannot_show_does_not_stop_the_class(tmp_path, monkeypatch, capsys):
    lab = make_course(tmp_path)
    (lab.root / "submitted" / "Łukasz" / lab.slug).mkdir(parents=True)
    record = Record("Łukasz", 100.0, 100.0, "graded", 0.5, "cpu", "complete")
    monkeypatch.setattr(executing, "grade_class", lambda folder, lab, options, line, wanted: line(record, False))
    monkeypatch.setattr(executing, "choose", lambda sandbox: "none")
    ahead(lab, 2)
    assert capsys.readouterr().out == "executed \\u0141ukasz in 0.5 s\n"


def test_who_is_graded_is_not_executed_ahead_unless_again(lab):
    records = lab.root / "submitted" / ".threeloops"
    assert autograde(lab)[1], "all are graded now"
    shutil.rmtree(records)
    ahead(lab, 2)
    assert not (records / lab.slug / "executed").exists()
    assert ahead(lab, 1, again=True) is None, "nothing to gain: nbgrader executes one at a time"
