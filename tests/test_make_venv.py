"""scripts/make_venv.py: safe to run twice, after a first run that failed, and beside what is someone else's."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def make_venv(tmp_path):
    """Run scripts/make_venv.py in an empty project without requirements; returns (exit code, what it said)."""
    (tmp_path / "requirements.txt").write_text("")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)

    def run(*extra):
        command = [sys.executable, ROOT / "scripts/make_venv.py", ".venv", "requirements.txt", *extra]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return run


def works(folder):
    return subprocess.run([folder / ".venv/bin/python", "-c", "import pip"]).returncode == 0


def test_a_second_run_does_nothing(make_venv, tmp_path):
    assert make_venv()[0] == 0 and works(tmp_path)
    assert make_venv() == (0, "")


def test_an_environment_left_half_made_is_repaired(make_venv, tmp_path):
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to("/nonexistent/python3")
    code, said = make_venv()
    assert code == 0 and "making it anew" in said and works(tmp_path)


def test_an_installation_cut_short_is_continued(make_venv, tmp_path):
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("./not-there-yet\n")
    code, said = make_venv()
    assert code == 1 and "error: pip could not install the pins of requirements.txt" in said
    assert "running this again continues" in said and "Traceback" not in said
    assert not list((tmp_path / ".venv").glob(".stamp*"))
    requirements.write_text("")
    code, said = make_venv()
    assert code == 0 and "making it anew" not in said
    assert make_venv() == (0, "")


def test_changed_pins_run_pip_again(make_venv, tmp_path):
    assert make_venv()[0] == 0
    (tmp_path / "requirements.txt").write_text("# changed\n")
    code, said = make_venv()
    assert code == 0 and "installing the pins of requirements.txt" in said


def test_a_folder_that_is_someone_elses_is_not_removed(make_venv, tmp_path):
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/thesis.txt").write_text("mine")
    code, said = make_venv()
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
