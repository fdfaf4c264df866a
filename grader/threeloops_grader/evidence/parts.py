"""The parts of `threeloops evidence`, each in a process of its own with a time limit.

A part returns what it measured, or raises `Skipped`, `Failed`, or `Unfinished`. A part that measures piece by piece
adds each piece to a file of rows as soon as it is known.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from threeloops.hardware.probe import installed_version

from threeloops_grader.evidence.result_rows import Row, measured, read
from threeloops_grader.machine.child_process import Finished, run_child
from threeloops_grader.machine.provenance import Device

__all__ = [
    "Failed", "Group", "NotDone", "Part", "Skipped", "Unfinished", "benchmark", "finish", "kernel_errors",
    "kernel_times", "rehearsing", "require", "run_tidily", "solution",
]  # fmt: skip

Group = Literal["faults", "numbers", "record"]
_BENCHMARK_SECONDS = {"grading": 200, "kernels": 500, "memory": 240, "precision": 120, "sustained": 150}
"""The time limit of each benchmark that may take more than 90 s."""
_rehearsal: ContextVar[list[list[str]] | None] = ContextVar("rehearsal", default=None)


class NotDone(Exception):
    """A part did not succeed. `result` holds its results until then. `again` says that another call can get further."""

    status: Literal["SKIPPED", "failed"] = "failed"

    def __init__(self, reason: str, result: Any = None, *, again: bool = False) -> None:
        super().__init__(reason)
        self.result = result
        self.again = again


class Skipped(NotDone):
    """This part cannot be done on this machine."""

    status = "SKIPPED"


class Failed(NotDone):
    """This part was tried and did not work."""


class Unfinished(NotDone):
    """This part's time was up. If it keeps rows, another call continues after the last one."""


@dataclass(frozen=True)
class Part:
    """One thing to run: `run(seconds)` returns plain data within a time limit, at most `seconds`.

    `rows` is the file of a part that works piece by piece. A part that times something runs `alone` on the machine.
    `unavailable` says why the part cannot run here, and is empty if it can.
    """

    name: str
    seconds: float
    run: Callable[[float], Any]
    group: Group = "record"
    rows: Path | None = None
    alone: bool = True
    unavailable: str = ""


def solution(slug: str, device: Device) -> Part:
    """Execute every cell of one lab's solution, even after one that failed: seconds, audits and failed cells."""

    def run(seconds: float) -> dict[str, Any]:
        require("papermill", "ipykernel", "jupytext")
        done = run_tidily(["-m", "threeloops_grader.evidence.lab_run", slug, device], seconds, device)
        finish(done)
        if (answer := done.answer) is None:
            raise Failed(done.why)
        if failed := answer["failed"]:
            first = f"cell {failed[0]['cell']}: {failed[0]['error']}"
            raise Failed(f"{len(failed)} cells failed: {first}" if len(failed) > 1 else first, answer)
        if answer["error"]:
            raise Failed(answer["error"], answer)
        return answer

    return Part(f"lab {slug}", 200, run, "faults", alone=False)


def benchmark(name: str, device: Device, folder: Path, unavailable: str = "", *, group: Group = "record") -> Part:
    """Run a benchmark in its quick form. Its JSON goes to `folder`. `unavailable` says why it cannot run here."""

    def run(seconds: float) -> dict[str, Any]:
        if name == "grading":
            require("nbgrader", "papermill", "jupytext")
        options = ["--quick", "--device", device, "--out", str(folder)]
        finish(run_tidily(["-m", "benchmarks", name, *options], seconds, device))
        return {"file": f"{name}.json"}

    return Part(f"benchmark {name}", _BENCHMARK_SECONDS.get(name, 90), run, group, unavailable=unavailable)


def kernel_errors(no_gpu: str, rows: Path, share: tuple[int, int]) -> Part:
    """Check a share of all kernels against float64 on the GPU, beside torch. Fails if one has too large an error."""

    def run(seconds: float) -> dict[str, Any]:
        errors = _kernel_rows("kernel_error", rows, seconds, ["--share", *map(str, share)])
        wrong = [row for row in errors if "failed" in row or not row["within"]]
        if wrong:
            names = ", ".join(sorted({f"{r['kernel']} {r['dtype']}" for r in wrong}))
            raise Failed(f"{len(wrong)} of {len(errors)} outputs are wrong or were not computed: {names}", errors)
        return {"rows": errors}

    return Part(f"kernel errors {share[0] + 1} of {share[1]}", 250, run, "faults", rows, False, no_gpu)


def kernel_times(no_gpu: str, rows: Path) -> Part:
    """Time every kernel, with its first shape, beside torch's and its other peers."""

    def run(seconds: float) -> dict[str, Any]:
        return {"rows": _kernel_rows("kernel_timing", rows, seconds, ["--quick"])}

    return Part("kernel times", 500, run, "numbers", rows, unavailable=no_gpu)


def _kernel_rows(module: str, rows: Path, seconds: float, options: list[str]) -> list[Row]:
    """Return the rows of `python -m benchmarks.MODULE` on the GPU, which continues from those that the file holds.

    Raises Failed or Unfinished with the rows that there are.
    """
    deadline = time.monotonic() + seconds
    while True:
        before = len(read(rows))
        remaining = deadline - time.monotonic()
        done = run_tidily(["-m", f"benchmarks.{module}", "--rows", str(rows), *options], remaining, "cuda")
        # A kernel that faults ruins the CUDA context for all later ones, which therefore get a new process.
        if not done.returncode or len(read(rows)) == before or deadline - time.monotonic() < 1:
            break
    finish(done, measured(rows), again=True)
    return measured(rows)


def finish(done: Finished, result: Any = None, *, again: bool = False) -> None:
    """Check how a child ended. Raises Unfinished if its time was up and Failed if it failed, with its results until
    then."""
    if done.returncode is None:
        raise Unfinished(done.why, result, again=again)
    if done.returncode:
        raise Failed(done.why, result, again=again)


@contextmanager
def rehearsing() -> Iterator[list[list[str]]]:
    """Give the list of the commands that parts would run while this is open; none is run."""
    commands: list[list[str]] = []
    token = _rehearsal.set(commands)
    try:
        yield commands
    finally:
        _rehearsal.reset(token)


def run_tidily(arguments: list[str], seconds: float, device: Device) -> Finished:
    """Run `python ARGUMENTS` on `device`, and remove its temporary files even if it had to be ended."""
    if (commands := _rehearsal.get()) is not None:
        commands.append(arguments)
        raise Unfinished("this is a dry run")
    with tempfile.TemporaryDirectory() as scratch:
        changes: dict[str, str | None] = {"THREELOOPS_DEVICE": device, "TMPDIR": scratch}
        if device == "cuda":
            changes["TRITON_INTERPRET"] = None
        return run_child(arguments, seconds, changes=changes)


def require(*packages: str) -> None:
    """Require a package. Raises Skipped if it is absent, because evidence never installs anything."""
    for package in packages:
        if installed_version(package) is None:
            raise Skipped(f"{package} is not installed")
