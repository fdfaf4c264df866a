"""What the tests of the wall share: a toy lab, submissions to it, and a look at what grading left behind."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell
from threeloops_grader.authoring.labs import Lab, LabLimits
from threeloops_grader.authoring.manifest import split_test_id
from threeloops_grader.grading.grade import Options, grade_notebook
from threeloops_grader.grading.records import Record
from threeloops_grader.sandbox import bwrap
from threeloops_grader.sandbox.pool import close_pools
from toy_course import make_course
from warm_commands import warm

REPOSITORY = Path(__file__).resolve().parents[2]
SANDBOXES = ("bwrap", "none")
QUICK = LabLimits(cell_seconds=120, test_seconds=120, notebook_seconds=900, memory_mb=1024, processes=24, disk_mb=16)
"""Small where it bounds what a submission may take, and long where it bounds time: what ends by itself must never run
into a deadline, however busy the machine is."""


def needs(sandbox: str) -> None:
    """Skip where bubblewrap does not work; with THREELOOPS_CI=1 that is a failure."""
    reason = bwrap.why_not() if sandbox == "bwrap" else None
    if reason and os.environ.get("THREELOOPS_CI") == "1":
        pytest.fail(f"no sandbox: {reason}")
    elif reason:
        pytest.skip(f"no sandbox: {reason}")


@contextlib.contextmanager
def fresh_course(folder: Path, make: Callable[[Path], Lab] = make_course) -> Iterator[Lab]:
    """A toy lab whose warm processes and temporary files are gone at the end; fails if anything is left."""
    usual, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield make(folder / "course")
    finally:
        close_pools()
        tempfile.tempdir = usual
    assert processes_of(folder) == []
    assert [p.name for p in folder.glob("threeloops-*")] == []


def submission(lab: Lab, before: str = "", **answers: str) -> NotebookNode:
    """The reference with some cells' text replaced, and a cell of the student's own in front."""
    notebook = lab.answered(answers)
    unknown = answers.keys() - {cell.id for cell in notebook.cells}
    assert not unknown, f"the lab has no cells {sorted(unknown)}"
    if before:
        notebook.cells.insert(0, new_code_cell(before))
    return notebook


def hand_in(notebook: NotebookNode, lab: Lab, student: str) -> Path:
    """Write a student's notebook where nbgrader and `threeloops grade` look for it."""
    path = lab.root / "submitted" / student / lab.slug / f"{lab.slug}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)
    return path


def sandbox_words() -> list[str]:
    """What `nbgrader autograde` is told where bubblewrap does not work."""
    return ["--WalledExecute.sandbox=none"] if bwrap.why_not() else []


def nbgrader(root: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a stock nbgrader command in a course's folder."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "THREELOOPS_ROOT": str(root), "PATH": path, **environment}
    return warm().run(["nbgrader", *words], root, env, timeout=900)


def grade(lab: Lab, notebook: NotebookNode, sandbox: str, limits: LabLimits = QUICK) -> Record:
    return grade_notebook(notebook, lab, "student", Options(sandbox=sandbox, limits=limits))


def points(record: Record) -> dict[str, float]:
    """By exercise."""
    found: dict[str, float] = {}
    for test in record.tests:
        exercise, _ = split_test_id(test.name)
        found[exercise] = found.get(exercise, 0.0) + test.score
    return found


def said(record: Record) -> str:
    """Everything that a record tells a person."""
    return "\n".join([*record.notes, *(t.output for t in record.tests)])


def processes_of(folder: Path) -> list[str]:
    """Processes that this one started for grading, and any whose environment or mounts name `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            text = (entry / "environ").read_text(errors="replace") + (entry / "mountinfo").read_text(errors="replace")
            words = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if str(folder) in text or (parent == os.getpid() and "threeloops_grader." in words):
            found.append(f"{entry.name}: {words}")
    return found
