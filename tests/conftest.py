"""What every test shares: GPU tests say that they were skipped; CI accepts the absence of nothing installable.

A part that a machine lacks (bubblewrap, Chromium, g++, Slurm, strace, Redis, NGINX, Prometheus, LibreOffice, poppler)
skips its tests with the reason. Where THREELOOPS_CI is set, as in .ci/run, that is a failure: CI installs all parts, so
a skip there means that something was not tested.
"""

import os
import re

import pytest
from hypothesis import settings

# As many tests run at a time as there are cores, and OpenMP's threads wait for each other by spinning: with two each,
# the interpreter's tests took four times as long. Set before anything imports torch; processes inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

NOT_INSTALLABLE = ("gpu", "cgroup", "pyodide")
"""Markers of tests that need what no package brings: a device, a machine that lets control groups be made, Pyodide."""

STRICT = bool(os.environ.get("THREELOOPS_CI"))

STARTED_IN = os.getcwd()

# How long an example takes says nothing on a busy machine: tests assert no times. In CI the examples of a commit are
# the same in every run, so that its verdict is too; everywhere else each run tries others.
settings.register_profile("course", deadline=None, derandomize=STRICT)
settings.load_profile("course")


LONGEST_FIRST = ("test_readme.py", "test_graded.py", "test_answers.py", "test_wheel.py")
"""Nothing else would run beside these at the end."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: [item.path.name != name for name in LONGEST_FIRST])


def runs_with(nodeid: str) -> str:
    """What tests share: their file with its fixtures; of the largest files one document, one lab, or one sandbox."""
    file, _, test = nodeid.partition("::")
    if file.endswith(("test_graded.py", "test_sources.py")):
        return " ".join([file, *re.findall(r"\[(\d\d_\w+)", test)])
    if file.endswith(("test_answers.py", "test_readme.py")):
        return " ".join([file, *re.findall(r"[-[](\w+|\w+\.md)\]$", test)])
    return file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """One worker runs all tests that share something, so that it is made once. The next group goes to who is free."""
    from xdist.scheduler import LoadScopeScheduling  # a machine that only measures may not have it

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return runs_with(nodeid)

    config.option.loadscopereorder = False  # the order is that of the collection: longest first
    return Together(config, log)


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device on this machine")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Later tests of this process start programs with `python -m`, which finds them in the current folder."""
    found = yield
    if (left := os.getcwd()) != STARTED_IN:
        os.chdir(STARTED_IN)
        pytest.fail(f"the test left this process in {left}: use monkeypatch.chdir, which goes back to {STARTED_IN}")
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    excused = hasattr(report, "wasxfail") or any(map(item.get_closest_marker, NOT_INSTALLABLE))
    if STRICT and report.skipped and not excused:
        refuse_absence(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if STRICT and report.skipped:
        refuse_absence(report)
    return report


def refuse_absence(report):
    """Turn a skip into a failure that names the missing part."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"THREELOOPS_CI is set, so no part may be missing: {reason}"
