"""What `threeloops evidence` runs, one part at a time, each in a process of its own with a limit.

A part returns what it measured, or raises `Skipped` (it cannot be done here, and why), `Failed`, or `Unfinished` (its
time was up). What a part measures piece by piece stands in a file of rows as soon as each piece is known.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from threeloops.hardware.probe import installed_version

from grader.evidence.rows import Row, measured, read
from grader.machine.child import Finished, run_child
from grader.machine.provenance import Device

Group = Literal["faults", "numbers", "record"]
BENCHMARK_SECONDS = {"grading": 200, "kernels": 500, "memory": 240, "precision": 120}
"""The most that each may take, where it is not 90 s."""


class NotDone(Exception):
    """A part did not come to a good end; the message says why, `result` is what it has shown all the same, and `again`
    whether another call can get further."""

    def __init__(self, reason: str, result: Any = None, *, again: bool = False) -> None:
        super().__init__(reason)
        self.result, self.again = result, again


class Skipped(NotDone):
    """This part cannot be done on this machine."""


class Failed(NotDone):
    """This part was tried and did not work."""


class Unfinished(NotDone):
    """This part's time was up. Where it keeps rows, another call goes on from the last."""


@dataclass(frozen=True)
class Part:
    """One thing to run: `run(seconds)` returns plain data. `seconds` is the most that it may take.

    `rows` is the file of a part that works piece by piece. A part that times something runs `alone` on the machine.
    """

    name: str
    seconds: float
    run: Callable[[float], Any]
    group: Group = "record"
    rows: Path | None = None
    alone: bool = True


def solution(slug: str, device: Device) -> Part:
    """Execute one lab's solution, every cell, also behind one that failed; returns seconds, audits and failed cells."""

    def run(seconds: float) -> dict[str, Any]:
        for package in ("papermill", "ipykernel", "jupytext"):
            require(package)
        answer = last_json(run_tidily(["-m", "grader.evidence.solution", slug, device], seconds, device))
        if failed := answer["failed"]:
            first = f"cell {failed[0]['cell']}: {failed[0]['error']}"
            raise Failed(f"{len(failed)} cells failed: {first}" if len(failed) > 1 else first, answer)
        if answer["error"]:
            raise Failed(answer["error"], answer)
        return answer

    return Part(f"lab {slug}", 200, run, "faults", alone=False)


def benchmark(
    name: str, device: Device, folder: Path, no_sandbox: str | None = None, *, group: Group = "record"
) -> Part:
    """A benchmark, in its quick form where that measures the same; its JSON goes to `folder`. `no_sandbox` says why one
    that needs it cannot run."""

    def run(seconds: float) -> dict[str, Any]:
        if no_sandbox:
            raise Skipped(no_sandbox)
        for package in ("nbgrader", "papermill", "jupytext") if name == "grading" else ():
            require(package)
        options = ["--quick", "--device", device, "--out", str(folder)]
        finish(run_tidily(["-m", "benchmarks", name, *options], seconds, device))
        return {"file": f"{name}.json"}

    return Part(f"benchmark {name}", BENCHMARK_SECONDS.get(name, 90), run, group)


def kernel_errors(device: Device, no_gpu: str, rows: Path, share: tuple[int, int]) -> Part:
    """A share of all kernels against float64 on the GPU, beside torch; fails where one is off by too much."""

    def run(seconds: float) -> dict[str, Any]:
        if device == "cpu":
            raise Skipped(no_gpu)
        found = kernel_rows("kernel_error", rows, seconds, device, ["--share", *map(str, share)])
        wrong = [row for row in found if "failed" in row or not row["within"]]
        if wrong:
            names = ", ".join(sorted({f"{r['kernel']} {r['dtype']}" for r in wrong}))
            raise Failed(f"{len(wrong)} of {len(found)} outputs are wrong or were not computed: {names}", found)
        return {"rows": found}

    return Part(f"kernel errors {share[0] + 1} of {share[1]}", 250, run, "faults", rows, alone=False)


def kernel_times(device: Device, no_gpu: str, rows: Path) -> Part:
    """The time of every kernel beside torch's and its other peers', the first shape of each."""

    def run(seconds: float) -> dict[str, Any]:
        if device == "cpu":
            raise Skipped(no_gpu)
        return {"rows": kernel_rows("kernel_timing", rows, seconds, device, ["--quick"])}

    return Part("kernel times", 500, run, "numbers", rows)


def kernel_rows(module: str, rows: Path, seconds: float, device: Device, options: list[str]) -> list[Row]:
    """The rows of `python -m benchmarks.MODULE`, which goes on from those that the file holds.

    Raises Failed or Unfinished with the rows that there are.
    """
    deadline = time.monotonic() + seconds
    while True:
        before = len(read(rows))
        left = deadline - time.monotonic()
        done = run_tidily(["-m", f"benchmarks.{module}", "--rows", str(rows), *options], left, device)
        # A kernel that faults ends the CUDA context for all that come after it: those get a process of their own.
        if not done.returncode or len(read(rows)) == before or deadline - time.monotonic() < 1:
            break
    finish(done, measured(rows), again=True)
    return measured(rows)


def finish(done: Finished, result: Any = None, *, again: bool = False) -> None:
    """Raises Unfinished where a child's time was up and Failed where it failed, with what it has shown until then."""
    if done.returncode is None:
        raise Unfinished(done.why, result, again=again)
    if done.returncode:
        raise Failed(done.why, result, again=again)


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
    """The JSON object in the last line that a child printed. Raises Failed or Unfinished where there is none."""
    finish(done)
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        answer = None
    if not isinstance(answer, dict):
        raise Failed(done.why)
    return answer
