"""What `threeloops evidence` runs, one part at a time, each in a process of its own with a limit.

A part returns what it measured, or raises `Skipped` (it cannot be done here, and why) or `Failed`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from grader.child import CODE, Finished, run_child
from grader.installed import installed_version
from grader.provenance import Device

TESTS = CODE / "tests"


class Skipped(Exception):
    """This part cannot be done on this machine; the message says why."""


class Failed(Exception):
    """This part was tried and did not work; the message says how it ended."""


@dataclass(frozen=True)
class Part:
    """One thing to run: `run(seconds)` returns plain data. `seconds` is the most that it may take."""

    name: str
    seconds: float
    run: Callable[[float], Any]


def gpu_tests(device: Device, no_gpu: str) -> Part:
    """The tests marked `gpu`. `no_gpu` says why there is none, for the device "cpu"."""

    def run(seconds: float) -> dict[str, Any]:
        if device == "cpu":
            raise Skipped(no_gpu)
        require("pytest")
        marked = [p for p in sorted(TESTS.rglob("test_*.py")) if "mark.gpu" in p.read_text(encoding="utf-8")]
        if not marked:
            raise Skipped("no test is marked gpu")
        with tempfile.TemporaryDirectory() as scratch:
            xml = Path(scratch) / "tests.xml"
            options = ["-m", "gpu", "-p", "no:cacheprovider", "-q", f"--junitxml={xml}", *map(str, marked)]
            done = run_tidily(["-m", "pytest", *options], seconds, device)
            if not xml.is_file():
                raise Failed(f"pytest wrote no report: {done.why}")
            return judge_tests(xml.read_text(encoding="utf-8"))

    return Part("GPU tests", 150, run)


def judge_tests(junit: str) -> dict[str, Any]:
    """The outcome of each test, from JUnit XML.

    Raises:
        Failed: a test failed.
        Skipped: none ran: a machine whose GPU tests were all skipped has shown nothing.
    """
    tests = []
    for case in ElementTree.fromstring(junit).iter("testcase"):
        bad = next((c for c in case if c.tag in ("failure", "error", "skipped")), None)
        outcome = "passed" if bad is None else "skipped" if bad.tag == "skipped" else "failed"
        reason = (bad.get("message") or "").strip().splitlines()[:1] if bad is not None else []
        tests.append({"name": case.get("name"), "outcome": outcome, "reason": "".join(reason)})
    failed = [t for t in tests if t["outcome"] == "failed"]
    if failed:
        raise Failed(f"{len(failed)} of {len(tests)} GPU tests failed: {failed[0]['name']}: {failed[0]['reason']}")
    if not any(t["outcome"] == "passed" for t in tests):
        reasons = sorted({str(t["reason"]) for t in tests}) or ["pytest selected none"]
        raise Skipped(f"no GPU test ran: {'; '.join(reasons)}")
    return {"tests": tests}


def solution(slug: str, device: Device) -> Part:
    """Execute one lab's solution with plain papermill; returns seconds and the audits that it printed."""

    def run(seconds: float) -> dict[str, Any]:
        for package in ("papermill", "ipykernel", "jupytext"):
            require(package)
        done = run_tidily(["-m", "grader.evidence_solution", slug, device], seconds, device)
        answer = last_json(done)
        if answer["error"]:
            raise Failed(answer["error"])
        return {"seconds": answer["seconds"], "audits": answer["audits"]}

    return Part(f"lab {slug}", 120, run)


def benchmark(name: str, device: Device, folder: Path, no_sandbox: str | None = None) -> Part:
    """The quick form of a benchmark; its JSON goes to `folder`. `no_sandbox` says why one that needs it cannot run."""

    def run(seconds: float) -> dict[str, Any]:
        if no_sandbox:
            raise Skipped(no_sandbox)
        for package in ("nbgrader", "papermill", "jupytext") if name == "grading" else ():
            require(package)
        options = ["--quick", "--device", device, "--out", str(folder)]
        done = run_tidily(["-m", "benchmarks", name, *options], seconds, device)
        if done.returncode:
            raise Failed(done.why)
        return {"file": f"{name}.json"}

    return Part(f"benchmark {name}", 200 if name == "grading" else 90, run)


def run_tidily(arguments: list[str], seconds: float, device: Device) -> Finished:
    """Run `python ARGUMENTS` on `device`; temporary files go with it, also where it had to be ended."""
    with tempfile.TemporaryDirectory() as scratch:
        changes: dict[str, str | None] = {"THREELOOPS_DEVICE": device, "TMPDIR": scratch}
        if device == "cuda":
            changes["TRITON_INTERPRET"] = None
        return run_child(arguments, seconds, changes=changes)


def require(package: str) -> None:
    """Raises Skipped where a package is absent: evidence never installs anything."""
    if installed_version(package) is None:
        raise Skipped(f"{package} is not installed")


def last_json(done: Finished) -> dict[str, Any]:
    """The JSON object in the last line that a child printed. Raises Failed where there is none."""
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1]) if done.returncode == 0 else None
    except (ValueError, IndexError):
        answer = None
    if not isinstance(answer, dict):
        raise Failed(done.why)
    return answer
