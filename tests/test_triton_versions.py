"""The kernels and the bench on the oldest and the newest Triton that the course accepts.

Another version than the installed one lies in a folder of its own in front of everything else on the import path, so
nothing that is installed changes. THREELOOPS_TRITON_OVERLAY names such a folder that exists already (made with `pip
install --target FOLDER --no-deps` and the packages of one of `OTHERS`).
"""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pytest
from threeloops_grader.machine.child_process import CODE, environment

pytestmark = pytest.mark.slow

# The 3.6 interpreter cannot take a tensor as a loop bound with numpy 2.4.
OTHERS = (("triton==3.6.0", "numpy<2.4"), ("triton==3.9.0",))
SECONDS = 1800

PARTS = {
    "kernels": ["tests/lib/inner/kernels"],
    "interpreter and launches": ["tests/lib/inner/interpreter", "tests/lib/inner/launches"],
    "meter": ["tests/lib/inner/meter"],
    "code inspector": ["tests/lib/inner/codegen", "tests/lib/inner/predict"],
    "replay": ["tests/lib/inner/replay", "tests/lib/lab/checking/test_replay.py"],
    "transformer": ["tests/lib/models/test_gpt.py"],
    "benchmark": ["tests/test_benchmark_kernels.py"],
}


@pytest.fixture(scope="module", params=OTHERS, ids=lambda packages: packages[0])
def other_triton(request):
    """Packages of a version that is not installed here."""
    if request.param[0].partition("==")[2] == version("triton"):
        pytest.skip(f"{request.param[0]} is installed, so all other tests run on it")
    return request.param


@pytest.fixture(scope="module")
def overlay(tmp_path_factory, other_triton):
    """A folder that holds the other Triton."""
    given = Path(os.environ.get("THREELOOPS_TRITON_OVERLAY", ""))
    if (given / f"{other_triton[0].replace('==', '-')}.dist-info").is_dir():
        return given
    folder = tmp_path_factory.mktemp("triton")
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*command, "--target", str(folder), *other_triton], capture_output=True, text=True, timeout=900
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
        if "No matching distribution" in done.stderr or "No module named pip" in done.stderr:
            pytest.skip(f"{' and '.join(other_triton)} cannot be installed here, so it is NOT tested: {said[-1]}")
        pytest.fail(f"pip could not install {' and '.join(other_triton)}: {said[-1]}")
    return folder


def run(overlay, *arguments):
    """`python ARGUMENTS` with the overlay in front of the installed packages, interpreting kernels on the CPU."""
    before = environment({"THREELOOPS_DEVICE": "cpu", "TRITON_INTERPRET": None, "OMP_NUM_THREADS": "1"})
    variables = {**before, "PYTHONPATH": f"{overlay}{os.pathsep}{before['PYTHONPATH']}"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=CODE, env=variables, capture_output=True, text=True, timeout=SECONDS)


def test_the_overlay_is_what_gets_imported(overlay, other_triton):
    done = run(overlay, "-c", "import numpy, triton; print(triton.__version__, numpy.__version__, triton.__file__)")
    triton, numpy, file = done.stdout.split()
    assert triton == other_triton[0].partition("==")[2] and triton != version("triton")
    assert Path(file).is_relative_to(overlay)
    assert len(other_triton) == 1 or tuple(map(int, numpy.split(".")[:2])) < (2, 4)


@pytest.mark.parametrize("patterns", PARTS.values(), ids=PARTS)
def test_the_suite_passes_on_the_other_triton(overlay, other_triton, tmp_path, patterns):
    files = sorted(str(found.relative_to(CODE)) for pattern in patterns for found in CODE.glob(pattern))
    assert files, f"no test matches {', '.join(patterns)}: this test looks for a file that was renamed"
    report = tmp_path / "tests.xml"
    options = ["-q", "-p", "no:cacheprovider", "-m", "not slow", f"--junitxml={report}"]
    done = run(overlay, "-m", "pytest", *options, *files)
    assert report.is_file(), f"pytest wrote no report: {done.stderr.strip() or done.stdout.strip()}"
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = {
        f"{case.get('classname')}::{case.get('name')}": (bad.get("message") or "").partition("\n")[0]
        for case in cases
        for bad in case
        if bad.tag in ("failure", "error")
    }
    assert not failed, f"{len(failed)} of {len(cases)} fail on {other_triton[0]}: {failed}"
    passed = [case for case in cases if not any(child.tag == "skipped" for child in case)]
    assert passed and done.returncode == 0, "nothing was tested: every test was skipped"
