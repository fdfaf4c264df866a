"""scripts/make_venv.py: safe to run twice, after a first run that failed, and beside what is someone else's."""

import ast
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

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


def make_venv(folder, *more):
    """Run scripts/make_venv.py; returns its exit code and what it said."""
    command = [sys.executable, ROOT / "scripts/make_venv.py", ".venv", "requirements.txt", *more]
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


def test_what_was_installed_is_compiled_and_what_is_no_python_stops_nothing(project, requirements):
    packages = next(project.glob(".venv/lib/python*/site-packages"))
    (packages / "some_module.py").write_text("x = 1\n")
    (packages / "some_template.py").write_text("{{ x }}: a template\n")
    requirements.write_text("# other pins\n")
    code, said = make_venv(project)
    assert (code, "Error" in said) == (0, False)
    assert list(packages.glob("__pycache__/some_module.*.pyc"))


def test_what_was_installed_for_the_tests_is_enough_for_the_course(project):
    (project / "requirements-test.txt").write_text("")
    (project / ".venv/.stamp-requirements").unlink(missing_ok=True)
    code, said = make_venv(project, "requirements-test.txt")
    assert code == 0 and "requirements.txt and requirements-test.txt" in said
    assert make_venv(project) == (0, "")


def test_a_folder_that_is_someone_elses_is_not_removed(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "requirements.txt").write_text("")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/thesis.txt").write_text("mine")
    code, said = make_venv(tmp_path)
    assert code == 1
    assert said == "error: .venv is in the way and is no virtual environment (it holds thesis.txt): move it away\n"
    assert (tmp_path / ".venv/thesis.txt").read_text() == "mine"


@pytest.fixture
def module():
    spec = importlib.util.spec_from_file_location("make_venv", ROOT / "scripts/make_venv.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize("version", [(3, 10, 4), (3, 15, 0)])
def test_a_python_that_the_course_does_not_run_on_gets_one_sentence(module, monkeypatch, version):
    monkeypatch.setattr(module.sys, "version_info", version)
    with pytest.raises(module.Trouble, match=r"is Python 3\.1\d, and the course runs on 3\.11 to 3\.14"):
        module.main([".venv", "requirements.txt"])


def test_the_script_can_be_read_by_a_python_as_old_as_3_6():
    ast.parse((ROOT / "scripts/make_venv.py").read_text(), feature_version=(3, 6))


def test_an_environment_keeps_its_python_and_says_so_when_another_one_is_named(project, module, monkeypatch, capsys):
    make_venv(project)
    monkeypatch.chdir(project)
    monkeypatch.setattr(module, "_unsuitable", str)  # looking for pip changes which distutils later tests import
    monkeypatch.setattr(module, "_short", lambda version: "3.14")
    module.main([".venv", "requirements.txt"])
    here = ".".join(map(str, sys.version_info[:2]))
    assert capsys.readouterr().out == f".venv keeps its Python {here}: to use Python 3.14 instead, remove .venv first\n"


@pytest.mark.parametrize(
    ("system", "processor", "sentence"),
    [
        ("win32", "AMD64", "native Windows: run the course in WSL2, or in a container"),
        ("darwin", "arm64", "macOS: run the course in a container (open the folder in VS Code"),
        ("linux", "riscv64", "no wheels for the processor riscv64"),
    ],
)
def test_a_system_without_wheels_gets_one_sentence_with_what_to_do(module, system, processor, sentence):
    assert sentence in module._unsupported(system, processor)


@pytest.mark.parametrize("processor", ["x86_64", "aarch64"])
def test_linux_on_both_processors_is_supported(module, processor):
    assert module._unsupported("linux", processor) == ""


def test_a_checkout_that_cannot_be_written_gets_one_sentence(module, monkeypatch):
    monkeypatch.setattr(module.os, "access", lambda path, how: False)
    with pytest.raises(module.Trouble, match="cannot be written: copy the course to a folder of yours"):
        module._require_writable("/checkout")


def installed_with(module, monkeypatch, tmp_path, *, gpu, reachable):
    """pip's arguments for torch, in order, where PyTorch's index can be reached or not."""
    calls = []

    def install(folder, what, arguments):
        calls.append(arguments)
        if module.CPU_WHEELS in arguments and not reachable:
            raise module.Trouble("no network")

    monkeypatch.setattr(module, "_install", install)
    (tmp_path / "requirements.txt").write_text("torch==2.13.0\nnumpy==2.4.6\n")
    module._install_torch(tmp_path / ".venv", tmp_path / "requirements.txt", gpu)
    return calls


def test_without_a_gpu_the_small_wheel_is_taken_and_its_size_said_before(module, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(module, "_installed", lambda folder, pin: False)
    (only,) = installed_with(module, monkeypatch, tmp_path, gpu=False, reachable=True)
    assert only[-3:] == ["--index-url", module.CPU_WHEELS, "torch==2.13.0"]
    assert "No NVIDIA GPU was found: torch without CUDA, about 0.5 GB" in capsys.readouterr().out


def test_where_pytorchs_index_cannot_be_reached_pips_own_is_used_and_the_size_said(
    module, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(module, "_installed", lambda folder, pin: False)
    _, fallback = installed_with(module, monkeypatch, tmp_path, gpu=False, reachable=False)
    assert fallback == ["torch==2.13.0"]
    assert "cannot be reached: taking the wheel of pip's own index" in capsys.readouterr().out


def test_with_a_gpu_torch_comes_with_cuda(module, monkeypatch, tmp_path, capsys):
    assert installed_with(module, monkeypatch, tmp_path, gpu=True, reachable=True) == [["torch==2.13.0"]]
    assert "about 2.9 GB" in capsys.readouterr().out


def test_a_torch_that_is_there_is_not_fetched_again(module, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_python", lambda folder: sys.executable)
    version = importlib.metadata.version("packaging")
    assert module._installed(tmp_path, f"packaging=={version}") and not module._installed(tmp_path, "packaging==0.1")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A folder that is all of PATH, and no PYTHON from the outside."""
    monkeypatch.delenv("PYTHON", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def put_python(path, lines="exit 0"):
    """A program in place of a Python: by default one that passes make_venv.py's check."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)


def put_real_python(path, change):
    """This test's Python, after a change to what it says of itself."""
    runs = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    put_python(path, f'exec {sys.executable} -c "{change}; {runs}" "$@"')


SHIM = 'echo "pyenv: $0: command not found" >&2; exit 127'
NO_VENV = "import importlib.util, sys; sys.prefix = sys.base_prefix; importlib.util.find_spec = lambda name: None"


def find_python(folder, **environment):
    """Run scripts/find_python.sh; returns its exit code, the Python that it names, and what it says besides."""
    command = ["/bin/sh", ROOT / "scripts/find_python.sh", ".venv"]
    done = subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, text=True)
    return done.returncode, done.stdout.strip(), done.stderr


def test_the_newest_python_is_taken(machine, tmp_path):
    for name in ("python3", "python3.11", "python3.13", "python3.12"):
        put_python(machine / name)
    assert find_python(tmp_path) == (0, "python3.13", "")


def test_names_that_run_nothing_and_pythons_that_do_not_suit_are_passed_over(machine, tmp_path):
    put_python(machine / "python3.14", SHIM)
    put_real_python(machine / "python3.13", NO_VENV)
    put_real_python(machine / "python3", "import sys; sys.version_info = (3, 12, 4)")
    assert find_python(tmp_path) == (0, "python3", "")


def test_the_python_of_a_working_environment_comes_before_a_newer_one(machine, tmp_path):
    put_python(machine / "python3.14")
    put_python(tmp_path / ".venv/bin/python")
    assert find_python(tmp_path) == (0, ".venv/bin/python", "")
    put_python(tmp_path / ".venv/bin/python", SHIM)
    assert find_python(tmp_path) == (0, "python3.14", "")


def test_a_python_that_was_named_comes_before_all_others(machine, tmp_path):
    put_python(machine / "python3.14")
    put_python(machine / "python3.11")
    put_python(tmp_path / ".venv/bin/python")
    assert find_python(tmp_path, PYTHON="python3.11") == (0, "python3.11", "")


@pytest.mark.parametrize(
    ("put", "lines", "reason"),
    [
        (
            put_real_python,
            "import sys; sys.version_info = (3, 9, 2)",
            "is Python 3.9, and the course runs on 3.11 to 3.14",
        ),
        (put_python, SHIM, "does not run"),
        (lambda path, lines: None, "", "cannot be found"),
    ],
    ids=["old", "shim", "absent"],
)
def test_a_named_python_that_does_not_suit_is_refused_with_the_reason(machine, tmp_path, put, lines, reason):
    put_python(machine / "python3.14")
    put(machine / "python3.9", lines)
    assert find_python(tmp_path, PYTHON="python3.9") == (1, "", f"error: PYTHON=python3.9 {reason}\n")


def test_where_no_python_suits_each_is_named_with_its_reason_and_one_command_helps(machine, tmp_path):
    put_python(machine / "python3.12", SHIM)
    put_real_python(machine / "python3", "import sys; sys.version_info = (3, 9, 2)")
    code, python, said = find_python(tmp_path)
    assert (code, python) == (1, "")
    assert said == (
        "error: no Python on PATH can make .venv\n"
        "  python3.12 does not run\n"
        "  python3 is Python 3.9, and the course runs on 3.11 to 3.14\n"
        "Run this command, then make again: uv venv --seed --python 3.13 .venv\n"
    )


def test_where_only_venv_is_missing_the_command_installs_that(machine, tmp_path):
    put_real_python(machine / "python3", NO_VENV)
    minor = ".".join(map(str, sys.version_info[:2]))
    assert find_python(tmp_path)[2].endswith(f"then make again: apt install python{minor}-venv\n")


def test_the_names_that_are_tried_are_those_of_the_versions_that_the_package_admits():
    tried = re.findall(r"python3\.(\d+)", (ROOT / "scripts/find_python.sh").read_text().partition("for python in")[2])
    admitted = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
    newest_first = [str(minor) for minor in range(30, 0, -1) if f"3.{minor}.0" in admitted]
    assert [minor for minor in tried if minor in newest_first][: len(newest_first)] == newest_first


def test_make_runs_make_venv_with_the_python_that_was_found(machine, tmp_path, monkeypatch):
    for name in ("Makefile", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    put_python(machine / "python3.14", SHIM)
    put_python(machine / "python3.13", 'test "$2" = --check || echo "python3.13 $@"')
    put_python(machine / "python3.11", 'test "$2" = --check || echo "python3.11 $@"')
    monkeypatch.setenv("PATH", f"{machine}:{os.defpath}")

    def make(*words):
        done = subprocess.run(
            ["make", "--no-print-directory", "environment", *words], cwd=tmp_path, capture_output=True, text=True
        )
        return done.returncode, done.stdout.strip()

    told = "scripts/make_venv.py .venv requirements.txt --editable"
    assert make() == (0, f"python3.13 {told}")
    assert make("PYTHON=python3.11") == (0, f"python3.11 {told}")
    assert make("PYTHON=python3.14")[0] != 0
