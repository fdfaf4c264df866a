"""What a learner does with a copy: open it, see how far it is, put an exercise back."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from threeloops.lab.course import journal
from threeloops_grader.authoring.labs import LabError, all_labs
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.learner import open_lab
from threeloops_grader.learner.notebooks import own_notebook
from threeloops_grader.learner.progress import key, next_step, standing
from threeloops_grader.learner.reset import reset
from threeloops_grader.machine.faults import MachineFault
from threeloops_grader.machine.installed import as_typed
from threeloops_grader.release import student_copies
from threeloops_grader.release.release import release
from toy_course import make_course, read


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    lab = make_course(tmp_path_factory.mktemp("course"))
    release([lab])
    return lab


@pytest.fixture
def toy(course, tmp_path, monkeypatch):
    """A started lab of a learner whose record is empty."""
    monkeypatch.setenv("THREELOOPS_ROOT", str(course.root))
    monkeypatch.setenv("THREELOOPS_HOME", str(tmp_path / "home"))
    course.work.unlink(missing_ok=True)
    student_copies.start(course)
    yield course
    for kept in course.work.parent.glob("*.py"):
        kept.unlink()


def write(lab, exercise, source):
    notebook = read(lab.work)
    next(cell for cell in notebook.cells if cell.id == exercise).source = source
    nbformat.write(notebook, lab.work)


def test_points_minutes_and_the_next_exercise_come_from_checks_that_passed(toy, tmp_path):
    before = standing(toy, set())
    assert (before.points, before.of, before.minutes, before.next_exercise) == (0, 100, 5, "mean")
    half = standing(toy, {"mean", "rescale/zeros", "of another lab"})
    assert (half.points, half.next_exercise, half.minutes_left, half.done) == (55, "rescale", 2, False)
    whole = standing(toy, {"mean", "rescale/zeros", "rescale/values"})
    assert (whole.points, whole.next_exercise, whole.minutes_left, whole.done) == (100, "", 0, True)
    assert next_step([half]) == "Next: rescale in lab 90_toy (`threeloops lab 90`)."
    assert next_step([whole]).endswith("has passed; `threeloops check LAB --full` also tries the hidden ones.")
    (tmp_path / "labs").mkdir()
    in_a_bundle = replace(toy, root=tmp_path)
    assert next_step([replace(whole, lab=in_a_bundle)]).endswith("has passed; hand in with `threeloops submit LAB`.")


def test_a_lab_that_was_begun_comes_before_one_that_was_not(toy):
    begun = standing(toy, set())
    toy.work.unlink()
    assert "about 5 minutes" in next_step([standing(toy, set())])
    assert next_step([standing(toy, set()), begun]).startswith("Next: mean in lab 90_toy")


@pytest.mark.parametrize("lab", all_labs(), ids=lambda lab: lab.slug)
def test_every_check_of_the_course_is_noted_under_the_name_that_status_looks_for(lab):
    sources = {cell.id: cell.source for cell in lab.master().cells}
    for part in manifest(lab).parts:
        calls = re.findall(r'with check\(\s*"(\w+)",.*?\):$', sources[part.test], re.DOTALL | re.MULTILINE)
        named = re.findall(r'with check\(\s*"\w+",[^\n]*?(?:\n[^\n]*?)*?part="(\w+)"', sources[part.test])
        exercise, _, aspect = key(part.test).partition("/")
        assert set(calls) == {exercise} and set(named) == ({aspect} if aspect else set()), part.test


def test_reset_gives_the_released_cell_back_and_keeps_the_answer_and_the_rest(toy):
    released = next(cell.source for cell in read(toy.work).cells if cell.id == "mean")
    assert reset("mean") == (toy, None)
    write(toy, "mean", "def mean(values):\n    return 7")
    write(toy, "rescale", "TINY = 1")
    journal.note_checked(toy.root / "work", toy.slug, {"mean": True, "rescale/values": True})
    lab, kept = reset("mean")
    assert kept == toy.work.parent / "mean.before-reset.py" and "return 7" in kept.read_text()
    cells = {cell.id: cell.source for cell in read(toy.work).cells}
    assert (cells["mean"], cells["rescale"]) == (released, "TINY = 1")
    assert journal.passed(toy.root / "work") == {toy.slug: {"rescale/values"}}
    write(toy, "mean", "def mean(values):\n    return 8")
    assert reset("mean", "90")[1] == toy.work.parent / "mean.before-reset-2.py"
    assert "return 7" in kept.read_text()


def test_reset_of_a_cell_that_was_split_keeps_all_parts_and_leaves_one_cell(toy):
    before = read(toy.work)
    notebook = read(toy.work)
    at = next(n for n, cell in enumerate(notebook.cells) if cell.id == "mean")
    notebook.cells[at].source = "def mean(values):"
    rest = nbformat.v4.new_code_cell("    return 7", metadata=notebook.cells[at].metadata)
    notebook.cells[at + 1 : at + 1] = [rest, nbformat.v4.new_code_cell("mine = 1")]
    nbformat.write(notebook, toy.work)
    _, kept = reset("mean")
    assert kept.read_text() == "def mean(values):\n    return 7\n"
    texts = [cell.source for cell in read(toy.work).cells]
    assert texts == [cell.source for cell in before.cells[: at + 1]] + ["mine = 1"] + [
        cell.source for cell in before.cells[at + 1 :]
    ]


def test_reset_removes_the_results_of_the_answer_and_no_others(toy):
    write(toy, "mean", "def mean(values):\n    return 7")
    notebook = read(toy.work)
    passed = nbformat.v4.new_output("stream", text="✓")
    for cell in (each for each in notebook.cells if each.cell_type == "code"):
        cell.outputs, cell.execution_count = [passed], 3
    nbformat.write(notebook, toy.work)
    reset("mean")
    empty = {cell.id for cell in read(toy.work).cells if cell.cell_type == "code" and not cell.outputs}
    assert empty == {"mean", "mean_test"}


def test_a_reset_that_cannot_keep_the_answer_changes_nothing(toy, monkeypatch):
    write(toy, "mean", "def mean(values):\n    return 7")
    before = toy.work.read_bytes()

    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("threeloops_grader.learner.reset.replace_text", full)
    with pytest.raises(OSError, match="No space"):
        reset("mean")
    assert toy.work.read_bytes() == before


def test_reset_of_a_lab_that_was_not_started_or_has_lost_the_cell_says_so(toy):
    notebook = read(toy.work)
    notebook.cells = [cell for cell in notebook.cells if cell.id != "mean"]
    nbformat.write(notebook, toy.work)
    with pytest.raises(LabError, match="has no cell mean any more; `threeloops update 90_toy` gives it back"):
        reset("mean")
    toy.work.unlink()
    with pytest.raises(LabError, match="90_toy.ipynb does not exist: you have not started lab 90_toy here"):
        reset("mean")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("{}", "JSON without cells"), ('{"cells": [], "metadata": []}', "JSON without cells"), ("[1]", "a JSON list")],
)
def test_json_that_is_no_notebook_gets_a_sentence(toy, tmp_path, text, sentence):
    (tmp_path / "x.ipynb").write_text(text)
    with pytest.raises(LabError, match=sentence):
        own_notebook(str(tmp_path / "x.ipynb"))


def test_a_notebook_of_no_lab_names_the_labs_there_are(toy, tmp_path):
    (tmp_path / "thesis.ipynb").write_text(json.dumps({"cells": [{"cell_type": "code", "source": ""}]}))
    with pytest.raises(LabError, match="thesis.ipynb is not a notebook of this course: .* 90_toy"):
        own_notebook(str(tmp_path / "thesis.ipynb"))


@pytest.mark.parametrize(("user", "allowed"), [(0, True), (1000, False)])
def test_jupyterlab_opens_the_lab_and_root_may_start_it(toy, monkeypatch, user, allowed):
    monkeypatch.setattr(open_lab.os, "geteuid", lambda: user)
    command = open_lab._jupyter_lab(toy, ["--port=9000"])
    assert command[:3] == [sys.executable, "-m", "jupyterlab"] and command[-1] == "--port=9000"
    assert "--LabApp.default_url=/lab/tree/90_toy/90_toy.ipynb" in command
    assert ("--allow-root" in command) is allowed


def test_a_learner_has_no_menus_of_nbgrader_and_no_news(toy):
    """As Jupyter itself reads the settings; those of the instructor's own Jupyter come after them."""
    variables = open_lab._environment({"JUPYTER_CONFIG_PATH": "/theirs", "PATH": "/bin"})
    ours, theirs = variables["JUPYTER_CONFIG_PATH"].split(":")
    assert theirs == "/theirs"
    with open(f"{ours}/labconfig/page_config.json") as file:
        assert set(json.load(file)["disabledExtensions"]) == {
            "@jupyter/nbgrader",
            "@jupyterlab/apputils-extension:announcements",
        }
    with open(f"{sys.prefix}/etc/jupyter/jupyter_server_config.d/nbgrader.json") as file:
        installed = json.load(file)["ServerApp"]["jpserver_extensions"]
    with open(f"{ours}/jupyter_server_config.json") as file:
        assert json.load(file)["ServerApp"]["jpserver_extensions"] == dict.fromkeys(installed, False)


@pytest.mark.parametrize(
    ("program", "path", "said"),
    [
        (".venv/bin/threeloops", "", "type `.venv/bin/threeloops lab 00`"),
        (".venv/bin/threeloops", ".venv/bin", "type `threeloops lab 00`"),
        ("elsewhere/pytest", "", "type `threeloops lab 00`"),
    ],
)
def test_a_message_names_the_command_as_the_shell_finds_it(tmp_path, monkeypatch, program, path, said):
    """`make lab` installs into .venv, which is on no PATH."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / program).parent.mkdir(parents=True)
    (tmp_path / program).touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [program])
    monkeypatch.setenv("PATH", str(tmp_path / path) if path else "/nowhere")
    assert as_typed("type `threeloops lab 00`") == said


def test_a_terminal_of_jupyterlab_finds_the_command(toy, tmp_path):
    """A login shell sets PATH anew. JupyterLab starts one if it was not started in a terminal itself."""
    variables = open_lab._environment({"PATH": os.environ["PATH"], "SHELL": "/bin/sh"})
    with open(f"{variables['JUPYTER_CONFIG_PATH']}/jupyter_server_config.json") as file:
        command = json.load(file)["ServerApp"]["terminado_settings"]["shell_command"]
    shell = subprocess.run(command, input="echo $PATH", env=variables, capture_output=True, text=True, check=True)
    assert shell.stdout.startswith(str(Path(sys.executable).parent))


def test_a_home_that_cannot_be_written_gets_one_sentence(toy, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "file/runtime"))
    with pytest.raises(MachineFault, match='Jupyter cannot write .*export HOME="\\$PWD/work"'):
        open_lab.open_lab(toy, [])
