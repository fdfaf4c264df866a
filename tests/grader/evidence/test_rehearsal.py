"""A dry run prints what the evidence would run on a GPU, and finds what has moved, on a machine without one."""

import os
import subprocess
import sys

import pytest
from threeloops_grader.evidence import rehearsal
from threeloops_grader.evidence.parts import Part, Skipped, run_tidily
from threeloops_grader.evidence.rehearsal import rehearse
from threeloops_grader.machine.child_process import CODE

SCRIPT = CODE / "scripts/gpu_first_hour.sh"


def first_hour(*arguments, cwd=CODE, **environment):
    command = ["bash", str(SCRIPT), *arguments]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env={**os.environ, "PY": sys.executable, **environment}
    )


def part(*command):
    return Part("one", 9, lambda seconds: run_tidily([*command], seconds, "cuda"))


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A small project in place of this one; returns a function that writes one of its files."""

    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    monkeypatch.setattr(rehearsal, "CODE", tmp_path)
    cached = (rehearsal._source, rehearsal._imports, rehearsal._bound)
    for function in cached:
        function.cache_clear()
    yield write
    for function in cached:
        function.cache_clear()


def test_everything_that_the_first_hour_on_a_gpu_names_is_there(tmp_path):
    (tmp_path / "ncu").touch(mode=0o755)
    done = first_hour("--dry-run", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("==")] == [f"== call {n}" for n in (1, 2, 3)]
    for command in (
        "python -m pytest -m gpu",
        "python -m benchmarks.kernel_error",
        "python -m threeloops_grader.evidence.lab_run 00_start_here",
        "python -m benchmarks roofline",
        "benchmarks.hardware_counters",
        "python -m benchmarks grading",
    ):
        assert command in done.stdout
    assert "skipped" not in done.stdout


def test_the_first_hour_is_three_calls_in_the_root_of_the_repository(tmp_path):
    for arguments in ((), ("4",), ("all",)):
        done = first_hour(*arguments)
        assert done.returncode == 2
        assert "usage: bash scripts/gpu_first_hour.sh 1|2|3" in done.stderr
    done = first_hour("1", cwd=tmp_path)
    assert done.returncode == 2
    assert "has no grader/threeloops_grader/cli.py: run this in the root of the repository" in done.stderr


def test_a_dry_run_runs_nothing(tmp_path):
    ((line, missing),) = rehearse(part("-c", f"open({str(tmp_path / 'made')!r}, 'w')"))
    assert line.startswith("one: python -c") and missing == []
    assert not (tmp_path / "made").exists()


def test_a_part_that_would_run_nothing_says_why():
    def skip(seconds):
        raise Skipped("ncu is not installed")

    assert list(rehearse(Part("one", 9, skip))) == [("one: skipped, ncu is not installed", [])]
    assert list(rehearse(Part("two", 9, skip, unavailable="no GPU"))) == [("two: skipped, no GPU", [])]


def test_modules_and_files_that_have_moved_are_named(project):
    folder = str(rehearsal.CODE / "tests")
    ((_, missing),) = rehearse(
        part("-m", "benchmarks.gone", "-p", "threeloops_grader.plugin", "-p", "no:cacheprovider", folder)
    )
    assert missing == [
        f"there is no {what}" for what in ("module benchmarks.gone", "module threeloops_grader.plugin", "file tests")
    ]
    project("benchmarks/__init__.py", "")
    ((_, missing),) = rehearse(part("-m", "benchmarks", "roofline"))
    assert missing == ["there is no module benchmarks.roofline"]


def test_imports_that_would_fail_are_found_in_whatever_is_imported_on_the_way(project):
    project("benchmarks/timing.py", "def main():\n    from threeloops_grader.parts import run\n")
    project("grader/threeloops_grader/__init__.py", "")
    project(
        "grader/threeloops_grader/parts.py",
        "import threeloops.gone\nfrom threeloops import units, Missing\ndef run(): pass\n",
    )
    project("lib/threeloops/__init__.py", "")
    project("lib/threeloops/units.py", "def broken(:\n")
    ((_, missing),) = rehearse(part("-m", "benchmarks.timing"))
    assert sorted(missing) == [
        "grader/threeloops_grader/parts.py:1: there is no module threeloops.gone",
        "grader/threeloops_grader/parts.py:2: threeloops has no Missing",
        "lib/threeloops/units.py:1: invalid syntax",
    ]


def test_tests_that_need_a_gpu_and_the_cells_of_a_lab_are_read_too(project):
    project(
        "tests/test_kernel.py", "import pytest\nfrom threeloops import gone\n@pytest.mark.gpu\ndef test_it(): ...\n"
    )
    project("tests/test_other.py", "from threeloops import also_gone\n")
    project("solutions/01_roofline/01_roofline.py", "# %%\nfrom threeloops import roofline\n")
    project("lib/threeloops/__init__.py", "")
    ((_, missing),) = rehearse(part("-m", "pytest", "-m", "gpu", str(rehearsal.CODE / "tests")))
    assert missing == ["tests/test_kernel.py:2: threeloops has no gone"]
    ((_, missing),) = rehearse(part("-m", "pytest", "01_roofline"))
    assert missing == ["solutions/01_roofline/01_roofline.py:2: threeloops has no roofline"]
