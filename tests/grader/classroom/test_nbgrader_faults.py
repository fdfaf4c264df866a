"""nbgrader autograde on a machine that fails or is switched off: nobody's 0, and the next run grades everybody."""

import os
import shutil
import signal
import subprocess
import sys

import nbformat
import pytest
from grading import REPOSITORY, nbgrader
from nbgrader.api import Gradebook
from nbgrader.apps import api, autogradeapp
from threeloops_grader.classroom.autograde import _GuardedAutograde, install
from threeloops_grader.release.release import release
from toy_course import make_course

NONE = "--WalledExecute.sandbox=none"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course of one lab with two students, generated and not yet graded."""
    lab = make_course(tmp_path_factory.mktemp("course"))
    shutil.copy(REPOSITORY / "nbgrader_config.py", lab.root)
    release([lab])
    for student in ("ada", "bob"):
        folder = lab.root / "submitted" / student / lab.slug
        folder.mkdir(parents=True)
        nbformat.write(lab.master(), folder / f"{lab.slug}.ipynb")
    generated = nbgrader(lab.root, "generate_assignment", lab.slug, "--force")
    assert generated.returncode == 0, generated.stderr
    return lab


def scores(lab):
    """Every automatic score in the gradebook, by student; None is not graded."""
    with Gradebook(f"sqlite:///{lab.root / 'gradebook.db'}") as gradebook:
        return {
            submission.student.id: [grade.auto_score for notebook in submission.notebooks for grade in notebook.grades]
            for submission in gradebook.assignment_submissions(lab.slug)
        }


def test_both_ways_to_autograde_use_the_same_class():
    before = autogradeapp.Autograde, api.Autograde
    try:
        install()
        assert autogradeapp.Autograde is api.Autograde is _GuardedAutograde
    finally:
        autogradeapp.Autograde, api.Autograde = before


def test_from_a_fault_to_a_full_class(course):
    """One story, because each command takes seconds: no data, a kill, a resumed run, a fault when grading again."""
    samples = course.data / "samples.txt"
    samples.rename(course.root / "aside")
    broken = nbgrader(course.root, "autograde", course.slug, NONE)
    assert broken.returncode == 2, broken.stderr
    assert "grading stopped at ada, and nobody's points were changed: a setup cell of the lab failed" in broken.stderr
    assert "bob" not in broken.stderr
    assert scores(course) == {}
    assert not (course.root / "autograded" / "ada" / course.slug).exists()
    (course.root / "aside").rename(samples)

    kill_while_grading(course)
    assert set(map(tuple, scores(course).values())) <= {(None, None, None)}
    export = nbgrader(course.root, "export", "--to", "grades.csv")
    assert export.returncode == 0, export.stderr
    (row,) = [line for line in (course.root / "grades.csv").read_text().splitlines() if ",ada," in line]
    assert row.endswith(",ada,,,,,,,100.0")

    graded = nbgrader(course.root, "autograde", course.slug, NONE)
    assert graded.returncode == 0, graded.stderr
    assert "ada: an earlier run was cut off here" in graded.stderr
    assert scores(course) == {"ada": [40.0, 45.0, 15.0], "bob": [40.0, 45.0, 15.0]}
    assert "ada: graded without isolation (sandbox: none)" in graded.stderr
    notebook = nbformat.read(course.root / "autograded" / "ada" / course.slug / f"{course.slug}.ipynb", as_version=4)
    assert notebook.metadata.threeloops.sandbox == "none"
    tests = [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade")]
    assert ["without isolation" in c.outputs[0].text for c in tests] == [True, True, True]

    samples.rename(course.root / "aside")
    again = nbgrader(course.root, "autograde", course.slug, "--force", NONE)
    assert again.returncode == 2, again.stderr
    assert scores(course) == {"ada": [40.0, 45.0, 15.0], "bob": [40.0, 45.0, 15.0]}
    (course.root / "aside").rename(samples)


def kill_while_grading(course):
    """Kill nbgrader when it has written the notebook that it is about to execute."""
    running = subprocess.Popen(
        [sys.executable, "-m", "nbgrader", "autograde", course.slug, NONE],
        cwd=course.root,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "THREELOOPS_ROOT": str(course.root), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    try:
        while "Autograding" not in (line := running.stderr.readline()):
            assert line, "nbgrader ended before it graded anybody"
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate(timeout=60)
