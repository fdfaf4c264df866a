"""scripts/make_venv.py: safe to run twice, after a first run that failed, and beside what is someone else's."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project without requirements, whose environment is there; it is made once, for all that start from it."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "requirements.txt").write_text("")
    shutil.copy(ROOT / "pyproject.toml", folder)
    assert make_venv(folder)[0] == 0
    return folder


@pytest.fixture
def requirements(project):
    """The project's list of pins, empty again after the test."""
    yield project / "requirements.txt"
    (project / "requirements.txt").write_text("")


def make_venv(folder):
    """Run scripts/make_venv.py; returns its exit code and what it said."""
    command = [sys.executable, ROOT / "scripts/make_venv.py", ".venv", "requirements.txt"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def works(folder):
    return subprocess.run([folder / ".venv/bin/python", "-c", "import pip"]).returncode == 0


def test_a_second_run_does_nothing(project):
    make_venv(project)
    assert works(project) and make_venv(project) == (0, "")


def test_an_environment_whose_python_is_gone_is_made_anew(project):
    (project / ".venv/bin/python").unlink()
    (project / ".venv/bin/python").symlink_to("/nonexistent/python3")
    (project / ".venv/pyvenv.cfg").unlink()
    code, said = make_venv(project)
    assert code == 0 and "making it anew" in said and works(project)


def test_an_installation_cut_short_is_continued(project, requirements):
    requirements.write_text("./not-there-yet\n")
    code, said = make_venv(project)
    assert code == 1 and "error: pip could not install the pins of requirements.txt" in said
    assert "running this again continues" in said and "Traceback" not in said
    assert not list((project / ".venv").glob(".stamp*"))
    requirements.write_text("")
    code, said = make_venv(project)
    assert code == 0 and "making it anew" not in said
    assert make_venv(project) == (0, "")


def test_changed_pins_run_pip_again(project, requirements):
    requirements.write_text("# changed\n")
    code, said = make_venv(project)
    assert code == 0 and "installing the pins of requirements.txt" in said


def test_a_folder_that_is_someone_elses_is_not_removed(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "requirements.txt").write_text("")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/thesis.txt").write_text("mine")
    code, said = make_venv(tmp_path)
    assert code == 1
    assert said == "error: .venv is in the way and is no virtual environment (it holds thesis.txt): move it away\n"
    assert (tmp_path / ".venv/thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(("version", "word"), [((3, 10, 4), "old"), ((3, 14, 0), "new")])
def test_a_python_that_the_course_does_not_run_on_gets_one_sentence(monkeypatch, version, word):
    spec = importlib.util.spec_from_file_location("make_venv", ROOT / "scripts/make_venv.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.sys, "version_info", version)
    with pytest.raises(module.Trouble, match=rf"Python 3\.\d+ is too {word}: the course runs on 3.11, 3.12 and 3.13"):
        module.main([".venv", "requirements.txt"])
