"""`make course` passes over what has not changed since its last green run, and runs labs side by side."""

import os
import shutil
from pathlib import Path

import nbformat
import pytest
from rich.console import Console
from threeloops_grader.authoring.labs import Lab
from threeloops_grader.course import kept
from threeloops_grader.course.cluster_command import course_on_slurm
from threeloops_grader.course.course import run_course
from threeloops_grader.course.execute import Executed, LabOutcome
from threeloops_grader.course.progress import watching
from threeloops_grader.grading.records import Record
from threeloops_grader.machine.side_by_side import side_by_side
from threeloops_grader.worklist import slurm
from toy_course import make_course


@pytest.fixture
def toy(tmp_path):
    return make_course(tmp_path)


@pytest.fixture
def outcome(toy, tmp_path):
    """A green run of the toy, whose notebook lies in its folder."""
    folder = tmp_path / "executed"
    folder.mkdir()
    nbformat.write(toy.master(), folder / f"{toy.slug}.ipynb")
    record = Record("reference", 100.0, 100.0, "graded", 2.5, "cpu", "complete", [], [])
    return LabOutcome(toy, [Executed(toy.master(), 7.5)], "cpu", {"reference": record}, {"reference": 100.0})


def test_a_green_run_is_found_again_and_a_run_with_a_fault_is_not(outcome, tmp_path):
    folder = tmp_path / "executed"
    kept.keep(outcome, folder, "a state")
    found = kept.kept(outcome.lab, folder, "a state")
    assert found is not None and found.before and found.grades == outcome.grades and found.seconds == 10.0
    assert found.executed[0].notebook.cells == outcome.executed[0].notebook.cells
    assert kept.kept(outcome.lab, folder, "another state") is None
    outcome.faults.append("reference scored 60")
    kept.keep(outcome, folder, "a state")
    assert kept.kept(outcome.lab, folder, "a state") is None


def test_a_run_of_another_machine_is_finished_whatever_its_colour_and_only_a_green_one_is_kept(outcome, tmp_path):
    """The report of `threeloops course --on slurm` is made of these, and the machine is part of the state only."""
    folder = tmp_path / "executed"
    outcome.sandbox = "bwrap"
    kept.keep(outcome, folder, "the state of a node", "a source")
    green = kept.finished(outcome.lab, folder, "a source")
    assert green is not None and (green.faults, green.grades) == ([], outcome.grades)
    assert green.sandbox == "bwrap"
    outcome.faults.append("reference scored 60")
    kept.keep(outcome, folder, "the state of a node", "a source")
    assert kept.finished(outcome.lab, folder, "a source").faults == ["reference scored 60"]
    assert kept.finished(outcome.lab, folder, "another source") is None
    assert kept.kept(outcome.lab, folder, "the state of a node") is None
    bring_back = kept.set_aside(folder)
    assert kept.finished(outcome.lab, folder, "a source") is None
    bring_back()
    assert kept.finished(outcome.lab, folder, "a source").faults == ["reference scored 60"]


@pytest.mark.parametrize("sandbox", ["bwrap", "none"])
def test_the_report_of_a_course_on_slurm_says_whether_a_node_graded_without_isolation(
    outcome, tmp_path, monkeypatch, sandbox
):
    folder = tmp_path / "reports" / "executed" / outcome.lab.slug
    shutil.copytree(tmp_path / "executed", folder)
    outcome.sandbox = sandbox

    def run(*_):
        kept.keep(outcome, folder, "the state of a node", kept.source(outcome.lab))

    monkeypatch.setattr(slurm, "require_slurm", lambda: None)
    monkeypatch.setattr(slurm, "run_on_slurm", run)
    report = course_on_slurm([outcome.lab], tmp_path / "reports", "cpu", {}, Console(quiet=True), fresh=True)
    assert (report.sandbox, report.faults) == (sandbox, [])


def test_a_course_that_slurm_refuses_reports_no_faults_and_forgets_nothing(outcome, tmp_path, monkeypatch):
    """Found with a misspelt partition: the report named a fault in every lab, and --fresh forgot the green runs."""
    folder = tmp_path / "reports" / "executed" / outcome.lab.slug
    shutil.copytree(tmp_path / "executed", folder)
    source = kept.source(outcome.lab)
    kept.keep(outcome, folder, "the state of a node", source)

    def refuse(left, *_):
        assert len(left()) == 1
        raise slurm.Refused("no such partition")

    monkeypatch.setattr(slurm, "require_slurm", lambda: None)
    monkeypatch.setattr(slurm, "run_on_slurm", refuse)
    with pytest.raises(slurm.Refused):
        course_on_slurm([outcome.lab], tmp_path / "reports", "cpu", {}, Console(quiet=True), fresh=True)
    assert kept.finished(outcome.lab, folder, source) is not None


@pytest.mark.parametrize("spoil", ["edit", "remove", "cut"])
def test_a_run_whose_files_are_not_as_it_left_them_is_run_again(outcome, tmp_path, spoil):
    folder = tmp_path / "executed"
    kept.keep(outcome, folder, "a state")
    notebook, record = folder / f"{outcome.lab.slug}.ipynb", folder / "green.json"
    if spoil == "edit":
        notebook.write_text(notebook.read_text() + " ")
    elif spoil == "remove":
        notebook.unlink()
    else:
        record.write_text(record.read_text()[:100])
    assert kept.kept(outcome.lab, folder, "a state") is None


def edit(path: Path) -> None:
    path.write_text(path.read_text() + "\n# changed\n")


def test_the_state_moves_with_everything_that_a_lab_depends_on(toy, tmp_path, monkeypatch):
    """Lab, deep dives, data, library, grader, packages, Python, device, sandbox, settings, programs."""
    code = tmp_path / "code"
    for name in ("grader/threeloops_grader/wall/wall.py", "lib/threeloops/units.py"):
        (code / name).parent.mkdir(parents=True)
        (code / name).write_text("x = 1\n")
    monkeypatch.setattr("threeloops_grader.grading.fingerprint.HARNESS", code / "grader")
    monkeypatch.setattr("threeloops_grader.grading.fingerprint.LIBRARY", code / "lib/threeloops")
    monkeypatch.setattr("threeloops_grader.course.kept.CODE", code)
    seen = [kept.state(toy, "cpu", "none")]
    assert kept.state(toy, "cpu", "none") == seen[0]

    def moved() -> None:
        seen.append(kept.state(toy, "cpu", "none"))
        assert seen[-1] not in seen[:-1]

    edit(toy.source)
    moved()
    (toy.folder / f"{toy.slug}_dives.py").write_text(toy.source.read_text())
    moved()
    edit(toy.folder / f"{toy.slug}_dives.py")
    moved()
    edit(toy.data / "samples.txt")
    moved()
    edit(code / "grader/threeloops_grader/wall/wall.py")
    moved()
    edit(code / "lib/threeloops/units.py")
    moved()
    monkeypatch.setattr(kept, "distributions", list)
    moved()
    monkeypatch.setattr("threeloops_grader.grading.fingerprint.platform.python_version", lambda: "3.99.0")
    moved()
    monkeypatch.setenv("TRITON_INTERPRET", "7")
    moved()
    monkeypatch.setattr(kept.shutil, "which", lambda name: f"/elsewhere/{name}")
    moved()
    assert kept.state(toy, "cuda:NVIDIA H100", "none") not in seen
    assert kept.state(toy, "cpu", "bwrap") not in seen


def test_labs_side_by_side_share_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert list(side_by_side(os.getenv, [("OMP_NUM_THREADS",)] * 2, print, 2)) == [str(share)] * 2


def test_labs_run_side_by_side_and_the_second_run_passes_over_what_is_unchanged(toy, tmp_path, capsys):
    shutil.copytree(toy.folder, toy.folder.with_name("91_other"))
    other = Lab("91_other", toy.root)
    toy.folder.with_name("91_other").joinpath("90_toy.py").rename(other.source)
    steps = []
    first = run_course([toy, other], tmp_path / "reports", "cpu", steps.append, fresh=False, at_a_time=2)
    assert first.faults == [] and [each.lab.slug for each in first.labs] == ["90_toy", "91_other"]
    assert {step.lab for step in steps if step.what == "executing"} == {"90_toy", "91_other"}
    edit(other.source)
    steps.clear()
    with watching(Console()) as watch:
        second = run_course(
            [toy, other], tmp_path / "reports", "cpu", lambda step: (steps.append(step), watch(step)), fresh=False
        )
    assert [each.before for each in second.labs] == [True, False] and second.faults == []
    assert second.labs[0].grades == first.labs[0].grades
    assert {step.lab for step in steps if step.what == "executing"} == {"91_other"}
    assert "unchanged" in capsys.readouterr().out
    assert os.path.exists(tmp_path / "reports/executed/90_toy/90_toy.ipynb")
