"""A part of the evidence: the tests marked `gpu`, run by pytest with the plugin `benchmarks.pytest_rows`."""

import importlib.util
import re
from pathlib import Path
from typing import Any

from threeloops_grader.evidence.parts import Failed, Part, Skipped, Unfinished, require, run_tidily
from threeloops_grader.evidence.result_rows import BEGUN, MOST_ATTEMPTS, Row, read
from threeloops_grader.machine.child_process import CODE, Finished

__all__ = ["NOT_COLLECTED", "SELECTED", "gpu_tests"]

_OURS = ("benchmarks", "threeloops", "threeloops_grader")
SELECTED = "selected"
NOT_COLLECTED = "not collected"


def gpu_tests(no_gpu: str, rows: Path) -> Part:
    """Return the tests marked `gpu`, as pytest collects them. `no_gpu` says why they cannot run here."""

    def run(seconds: float) -> dict[str, Any]:
        require("pytest")
        options = ["-m", "gpu", "-p", "no:cacheprovider", "-q", "--continue-on-collection-errors"]
        plugin = ["-p", "benchmarks.pytest_rows", "--rows", str(rows)]
        done = run_tidily(["-m", "pytest", *options, *plugin, str(CODE / "tests")], seconds, "cuda")
        return _judge_tests(read(rows), done)

    return Part("GPU tests", 300, run, "faults", rows, False, no_gpu)


def _judge_tests(rows: list[Row], done: Finished) -> dict[str, Any]:
    """Return the outcome of each test, from the rows of `benchmarks.pytest_rows`. Files that need a package which is
    not installed are listed and fail nothing.

    Raises:
        Failed: a test failed or crashed its process, or a file could not be imported.
        Unfinished: the time was up before all tests had run.
        Skipped: no test ran; a machine that skipped all of them has shown nothing.
    """
    latest = {row["test"]: row for row in rows if "test" in row}
    selected = next((row[SELECTED] for row in reversed(rows) if SELECTED in row), None)
    if selected is None:
        raise (Unfinished if done.returncode is None else Failed)(f"pytest collected no test: {done.why}")
    tests = []
    absent = []
    for row in latest.values():
        if row["outcome"] == NOT_COLLECTED and _needs_absent_package(row["reason"]):
            absent.append({"file": row["test"], "reason": row["reason"]})
        else:
            tests.append({"name": row["test"], "outcome": row["outcome"], "reason": row["reason"]})
    result = {"tests": tests, "not_collected": absent}
    remaining = [name for name in selected if name not in latest or latest[name]["outcome"] == BEGUN]
    failed = [t for t in tests if t["outcome"] in ("failed", NOT_COLLECTED)]
    hung = [n for n in remaining if sum(r.get("test") == n and r["outcome"] == BEGUN for r in rows) >= MOST_ATTEMPTS]
    failed += [{"name": name, "reason": f"did not end in {MOST_ATTEMPTS} runs"} for name in hung]
    if failed:
        more = f"; {len(remaining)} did not end" if remaining else ""
        first = f"{failed[0]['name']}: {failed[0]['reason']}"
        reason = f"{len(failed)} of {len(selected)} GPU tests failed{more}: {first}"
        raise Failed(reason, result, again=len(remaining) > len(hung))
    if remaining:
        reason = f"{len(remaining)} of {len(selected)} GPU tests did not end: {done.why}"
        raise Unfinished(reason, result) if done.returncode is None else Failed(reason, result, again=True)
    if not any(t["outcome"] == "passed" for t in tests):
        reasons = sorted({str(t["reason"]) for t in tests}) or ["pytest selected none"]
        raise Skipped(f"no GPU test ran: {'; '.join(reasons)}", result)
    return result


def _needs_absent_package(reason: str) -> bool:
    """Return whether a file could not be imported because a third-party package is not installed."""
    missing = re.search(r"No module named '(\w+)", reason)
    return missing is not None and missing[1] not in _OURS and importlib.util.find_spec(missing[1]) is None
