"""A machine with PyTorch and without Jupyter, nbformat, nbgrader, git or a network measures what needs none of them."""

import ast
import json
import subprocess
from importlib.metadata import packages_distributions

import pytest
from offline_machine import make_offline_machine, offline_environment
from packaging.utils import canonicalize_name
from threeloops_grader.authoring.labs import all_labs, find_lab
from threeloops_grader.evidence.gpu_tests import _judge_tests
from threeloops_grader.evidence.parts import Skipped
from threeloops_grader.evidence.result_rows import begin, read
from threeloops_grader.machine.child_process import CODE, Finished
from threeloops_grader.machine.installed import requirements
from toy_course import SOURCE, make_course

from scripts.make_wheels import BROUGHT, CARRIED, pins


@pytest.fixture(scope="module")
def offline(tmp_path_factory):
    """Runs Python with these arguments on the offline machine, in the course's folder."""
    folder = tmp_path_factory.mktemp("machine")
    python = make_offline_machine(folder)
    environment = offline_environment(folder) | {"PYTHONPATH": f"{CODE / 'lib'}:{CODE / 'grader'}"}

    def run(*arguments):
        command = [str(python), *map(str, arguments)]
        return subprocess.run(command, cwd=CODE, env=environment, capture_output=True, text=True, timeout=400)

    assert run("-c", "import torch, triton, pytest").returncode == 0
    assert run("-c", "import nbformat").returncode == 1
    return run


@pytest.mark.parametrize(
    "module",
    ["threeloops_grader.cli", "threeloops_grader.evidence.collect", "benchmarks.__main__", "benchmarks.kernel_timing"],
)
def test_what_measures_can_be_imported(offline, module):
    done = offline("-c", f"import {module}")
    assert done.returncode == 0, done.stderr


def test_the_kernels_that_can_be_measured_are_gone_over_and_the_others_are_named(offline):
    count = "from benchmarks.kernel_cases import catalog, entries; print(len(entries()) - len(catalog()))"
    done = offline("-c", count)
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr
    assert "jaxtyping is not installed" in done.stderr and "few bits are left out" in done.stderr


def test_the_doctor_finds_that_the_course_runs(offline):
    done = offline("-m", "threeloops_grader.cli", "doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = {finding["name"]: finding["status"] for finding in json.loads(done.stdout)["findings"]}
    assert found["interpreter"] == "ok" and found["packages"] == "missing"


def test_a_command_that_needs_more_names_it_and_the_next_step(offline):
    done = offline("-m", "threeloops_grader.cli", "run", "00")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "nbformat is not installed" in said and "make course" in said and "Traceback" not in said


def test_evidence_skips_what_needs_more_with_its_reason(offline, tmp_path):
    parts = ["--part", "lab 00_start_here", "--part", "GPU tests"]
    done = offline("-m", "threeloops_grader.cli", "evidence", "--device", "cpu", "--out", tmp_path, *parts)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*/evidence.json")
    found = json.loads(path.read_text())
    status = {part["name"]: (part["status"], part["reason"]) for part in found["parts"]}
    assert status["lab 00_start_here"] == ("SKIPPED", "papermill is not installed")
    assert status["doctor"][0] == "ok" and found["provenance"]["commit"] is None


def test_gpu_tests_are_collected_where_other_tests_cannot_be(offline, tmp_path):
    rows = tmp_path / "rows.jsonl"
    begin(rows, "")
    files = ["tests/lib/inner/test_timing.py", "tests/test_project.py", "tests/grader/test_cli.py"]
    options = ["-m", "gpu", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    offline("-m", "pytest", *options, "-p", "benchmarks.pytest_rows", "--rows", rows, *files)
    ran = [row for row in read(rows) if row.get("outcome") == "skipped"]
    assert {row["test"].partition("::")[0] for row in ran} == {files[0]}
    absent = {row["test"] for row in read(rows) if row.get("outcome") == "not collected"}
    assert absent == set(files[1:])
    # Here the packages are installed, so the reasons are judged as there.
    without = [row | {"reason": "No module named 'no_such_package_zq'"} if "outcome" in row
               and row["outcome"] == "not collected" else row for row in read(rows)]  # fmt: skip
    with pytest.raises(Skipped, match="no GPU test ran") as nothing_ran:
        _judge_tests(without, Finished(1, "", "", 1.0))
    assert {file["file"] for file in nothing_ran.value.result["not_collected"]} == absent


def imported(code):
    """The top-level packages that the code imports."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_what_labs_and_the_library_import_is_carried_or_brought():
    """Whatever the packages need: the image's versions may need less than those here."""
    code = [path.read_text(encoding="utf-8") for path in (CODE / "lib").rglob("*.py")]
    code += ["\n".join(cell.source for cell in lab.master().cells if cell.cell_type == "code") for lab in all_labs()]
    owners = packages_distributions()
    used = {canonicalize_name(owner) for text in code for top in imported(text) for owner in owners.get(top, ())}
    there = {pin.partition("==")[0] for pin in pins()} | set(BROUGHT)
    wanted = {canonicalize_name(requirement.name) for requirement in requirements()} & used
    assert {"torch", "pydantic", "httpx"} <= wanted
    assert wanted - there == set()


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    """What becomes of one lab of a course on that machine, with the wheels that are carried there."""
    folder = tmp_path_factory.mktemp("carried")
    python = make_offline_machine(folder, CARRIED)

    def run(out, lab, **environment):
        own = offline_environment(folder) | {"PYTHONPATH": f"{CODE / 'lib'}:{CODE / 'grader'}"} | environment
        options = ["--device", "cpu", "--out", str(out), "--part", f"lab {lab}"]
        command = [str(python), "-m", "threeloops_grader.cli", "evidence", *options]
        done = subprocess.run(command, cwd=CODE, env=own, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stdout + done.stderr
        (path,) = out.glob("*/evidence.json")
        return {part["name"]: part["status"] for part in json.loads(path.read_text())["parts"]}[f"lab {lab}"]

    return run


def test_with_the_wheels_that_are_carried_there_a_lab_runs(evidence, tmp_path):
    """A small one, with the imports of the first."""
    assert not {"torch", "triton", "numpy"} & {pin.partition("==")[0] for pin in pins()}, "no image needs them again"
    code = "\n".join(cell.source for cell in find_lab("00").master().cells if cell.cell_type == "code")
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert "import torch" in map(ast.unparse, imports)
    usual = "import numpy as np\n"
    assert usual in SOURCE
    source = SOURCE.replace(usual, usual + "".join(f"{ast.unparse(node)}\n" for node in imports), 1)
    lab = make_course(tmp_path / "course", source)
    assert evidence(tmp_path / "out", lab.slug, THREELOOPS_ROOT=str(lab.root)) == "ok"


@pytest.mark.slow  # in every run, the small lab with the same imports
def test_with_the_wheels_that_are_carried_there_the_first_lab_runs(evidence, tmp_path):
    assert evidence(tmp_path / "out", "00_start_here") == "ok"
