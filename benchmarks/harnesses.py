"""The ways to grade a class that the grading benchmark compares, each on a course of its own in a scratch folder.

Stock nbgrader gets nbgrader's own assignment made from the same notebook; nbgrader with our preprocessors and
`threeloops grade` get this repository's `nbgrader_config.py` and sources. All grade the same submissions.

Grading through the wall skips cells that only demonstrate; nbgrader executes them. So stock nbgrader also grades the
class without them: the difference is what skipping gains, the rest is the harness.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from threeloops_grader.authoring.labs import SOLUTIONS, Lab
from threeloops_grader.authoring.manifest import Kind, Manifest, manifest
from threeloops_grader.machine.child_process import CODE, environment
from threeloops_grader.release.release import release

from benchmarks.classroom import Student, classroom, hand_in
from benchmarks.process_tree import Usage, run_measured
from benchmarks.result import Unmeasured

STOCK, WALLED, OURS = "nbgrader autograde (stock)", "nbgrader autograde (walled)", "threeloops grade"
STOCK_LEAN = "nbgrader autograde (stock, no demonstrations)"
PREPARE_SECONDS, GRADE_SECONDS = 300.0, 1800.0
_KEPT = "gradebook.kept"


class HarnessFailed(Unmeasured):
    """A harness did not finish; the message ends with the last lines that it printed."""


@dataclass(frozen=True)
class Run:
    """One graded class: what it cost and what each student earned."""

    usage: Usage
    scores: dict[str, float]


@dataclass(frozen=True)
class Bench:
    """A prepared scratch folder: one course for each harness, and the class that all of them grade."""

    lab: Lab
    """The lab inside the scratch course: its solutions, releases and submissions are no one else's."""

    students: list[Student]
    courses: Mapping[str, Path]
    """The folder in which each nbgrader harness runs."""

    environment: Mapping[str, str]

    def grade(self, harness: str) -> Run:
        """Grade the whole class once, from a fresh gradebook. Raises HarnessFailed."""
        if harness == OURS:
            return self._grade_ours()
        root = self.courses[harness]
        shutil.rmtree(root / "autograded", ignore_errors=True)
        shutil.copyfile(root / _KEPT, root / "gradebook.db")
        usage = self._measure([sys.executable, "-m", "nbgrader", "autograde", self.lab.slug], root)
        return Run(usage, _gradebook_scores(root, self.lab))

    def _grade_ours(self) -> Run:
        report = self.lab.root / "report.json"
        report.unlink(missing_ok=True)
        folder = str(self.lab.root / "submitted")
        command = ["grade", "--lab", self.lab.slug, "--submissions", folder, "--json", str(report), "--fresh"]
        usage = self._measure([sys.executable, "-m", "threeloops_grader.cli", *command], self.lab.root, (0, 1))
        records = json.loads(report.read_text(encoding="utf-8"))["records"]
        return Run(usage, {r["student"]: r["score"] for r in records})

    def _measure(self, argv: list[str], root: Path, good: tuple[int, ...] = (0,)) -> Usage:
        log = root / "log.txt"
        usage = run_measured(argv, root, self.environment, log, GRADE_SECONDS)
        if usage.returncode not in good:
            raise HarnessFailed(f"{' '.join(argv[2:4])} exits {usage.returncode}:\n{_tail(log)}")
        return usage


def prepare(lab: Lab, size: int, scratch: Path, harnesses: Sequence[str]) -> Bench:
    """Make a course of `lab` with a class of `size` below `scratch` for each harness. Nothing of this is timed."""
    root = scratch / "course"
    shutil.copytree(lab.folder, root / SOLUTIONS / lab.slug, ignore=shutil.ignore_patterns("__pycache__", "*.ipynb"))
    shutil.copyfile(CODE / "nbgrader_config.py", root / "nbgrader_config.py")
    copied = Lab(lab.slug, root)
    release([copied])
    students = list(classroom(copied, nbformat.read(copied.released, as_version=4), size))
    places = {WALLED: root, STOCK: scratch / "stock", STOCK_LEAN: scratch / "lean"}
    courses = {harness: place for harness, place in places.items() if harness in harnesses}
    bench = Bench(copied, students, courses, _environment(scratch, root))
    hand_in(students, copied, root / "submitted")
    for harness, course in courses.items():
        if harness != WALLED:
            _make_stock_course(bench, course, lean=harness == STOCK_LEAN)
        _generate(course, copied, bench.environment)
    return bench


def for_stock_nbgrader(notebook: NotebookNode, trusted: Manifest, *, lean: bool) -> NotebookNode:
    """The notebook as stock nbgrader can take it: it refuses a written answer that carries no points at all.

    `lean` leaves out the cells that only demonstrate.
    """
    notebook = nbformat.from_dict(json.loads(nbformat.writes(notebook)))
    if lean:
        notebook.cells = [c for c in notebook.cells if trusted.kind(c) is not Kind.DEMO]
    for cell in notebook.cells:
        meta = cell.metadata.get("nbgrader", {})
        if cell.cell_type == "markdown" and meta.get("solution") and not meta.get("grade"):
            cell.metadata.nbgrader = NotebookNode({**meta, "grade": True, "points": 0})
    return notebook


def _make_stock_course(bench: Bench, root: Path, *, lean: bool) -> None:
    lab, trusted = bench.lab, manifest(bench.lab)
    source = root / "source" / lab.slug
    source.mkdir(parents=True)
    nbformat.write(for_stock_nbgrader(lab.master(), trusted, lean=lean), source / f"{lab.slug}.ipynb")
    if lab.data.is_dir():
        shutil.copytree(lab.data, source / "data")
    students = [replace(s, notebook=for_stock_nbgrader(s.notebook, trusted, lean=lean)) for s in bench.students]
    hand_in(students, lab, root / "submitted")
    (root / "nbgrader_config.py").write_text('c = get_config()\nc.CourseDirectory.course_id = "stock"\n')


def _generate(root: Path, lab: Lab, variables: Mapping[str, str]) -> None:
    """nbgrader's own step before grading; the gradebook that it makes is kept, so that each run starts from it."""
    argv = [sys.executable, "-m", "nbgrader", "generate_assignment", lab.slug, "--force"]
    log = root / "log.txt"
    with log.open("wb") as out:
        done = subprocess.run(
            argv, cwd=root, env=dict(variables), stdout=out, stderr=out, timeout=PREPARE_SECONDS, check=False
        )
    if done.returncode:
        raise HarnessFailed(f"nbgrader generate_assignment exits {done.returncode}:\n{_tail(log)}")
    shutil.copyfile(root / "gradebook.db", root / _KEPT)


def _environment(scratch: Path, root: Path) -> dict[str, str]:
    """The same for every harness: on the CPU, kernels interpreted, nobody's own Jupyter settings."""
    empty = scratch / "jupyter"
    empty.mkdir()
    return environment(
        {
            "THREELOOPS_ROOT": str(root),
            "THREELOOPS_HOME": str(scratch / "home"),
            "THREELOOPS_EXCHANGE": str(scratch / "exchange"),
            "THREELOOPS_DEVICE": "cpu",
            "TRITON_INTERPRET": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "JUPYTER_CONFIG_DIR": str(empty),
            "JUPYTER_NO_CONFIG": None,
            "MPLBACKEND": None,
        }
    )


def _gradebook_scores(root: Path, lab: Lab) -> dict[str, float]:
    with Gradebook(f"sqlite:///{root / 'gradebook.db'}") as gradebook:
        return {s.student.id: float(s.score) for s in gradebook.assignment_submissions(lab.slug)}


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").strip().splitlines()[-lines:])
