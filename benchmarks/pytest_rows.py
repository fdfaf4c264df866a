"""A pytest plugin, `-p benchmarks.pytest_rows --rows FILE`: writes the outcome of each test as soon as it is known.

Tests whose outcome stands there already are deselected, so a run that was ended goes on where it stopped. A test that
was begun twice and never ended, because it hangs or takes its process down, is not begun a third time.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from threeloops_grader.evidence.gpu_tests import NOT_COLLECTED, SELECTED
from threeloops_grader.evidence.result_rows import BEGUN, MOST_ATTEMPTS, append, read


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rows", type=Path, help="file to which outcomes are written, a JSON object a line")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--rows"):
        config.pluginmanager.register(Writer(path))


class Writer:
    def __init__(self, path: Path) -> None:
        self.path = path

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        rows = [row for row in read(self.path) if "test" in row]
        attempts = Counter(row["test"] for row in rows if row["outcome"] == BEGUN)
        ended = {row["test"] for row in rows if row["outcome"] not in (BEGUN, NOT_COLLECTED)}
        append(self.path, {SELECTED: [item.nodeid for item in items]})
        left = [i for i in items if i.nodeid not in ended and attempts[i.nodeid] < MOST_ATTEMPTS]
        config.hook.pytest_deselected(items=[item for item in items if item not in left])
        items[:] = left

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write(report.nodeid, NOT_COLLECTED, last_error(report.longreprtext))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(nodeid, BEGUN)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else last_error(report.longreprtext)
            self.write(report.nodeid, report.outcome, reason)

    def write(self, test: str, outcome: str, reason: str = "") -> None:
        append(self.path, {"test": test, "outcome": outcome, "reason": reason})


def last_error(text: str) -> str:
    """The first line of the last error in a traceback as pytest prints it."""
    lines = text.splitlines()
    marked = [i for i, line in enumerate(lines) if line.startswith("E ")]
    firsts = [i for i in marked if i - 1 not in marked]
    return lines[firsts[-1]][1:].strip() if firsts else (lines[-1].strip() if lines else "")
