"""How long it takes to grade a class, against stock `nbgrader autograde` in the same run, and where the time goes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.machine.child_process import run_child
from threeloops_grader.machine.provenance import Provenance
from threeloops_grader.sandbox.bwrap import SandboxError, why_not

from benchmarks.harnesses import OURS, STOCK, STOCK_LEAN, WALLED, Bench, HarnessFailed, Run, prepare
from benchmarks.result import Result, Series
from benchmarks.wall import FULL, QUICK, wall_costs

HARNESSES = (STOCK, STOCK_LEAN, WALLED, OURS)
OURS_JOBS = 2
"""`threeloops grade` grades two submissions at a time unless told otherwise; nbgrader grades one."""


def measure(
    provenance: Provenance, labs: list[Lab], *, size: int = 20, repeats: int = 3, quick: bool = False
) -> Result:
    """Grade a class of `size` of each lab `repeats` times with each harness, in turns; then take the wall apart.

    Raises:
        SandboxError: bubblewrap does not work here; grading without a sandbox is not what is measured.
        HarnessFailed: a harness did not grade the class, or ours gave a score that the class must not earn.
    """
    if reason := why_not():
        raise SandboxError(f"{reason}; the grading benchmark measures with the sandbox on")
    size, repeats = (min(size, 3), 1) if quick else (size, repeats)
    series: list[Series] = []
    facts: dict[str, Any] = {}
    for lab in labs:
        found, about = grade_lab(lab, size, repeats, (STOCK, WALLED, OURS) if quick else HARNESSES)
        series += found
        facts[lab.slug] = about
    series += wall_costs("bwrap", QUICK if quick else FULL)
    settings = {"labs": [lab.slug for lab in labs], "class": size, "repeats": repeats, "sandbox": "bwrap"}
    return Result("grading", provenance, settings, series, facts)


def grade_lab(
    lab: Lab, size: int, repeats: int, harnesses: Sequence[str] = HARNESSES
) -> tuple[list[Series], dict[str, Any]]:
    """The series of one lab, and what every student earned from each harness."""
    runs: dict[str, list[Run]] = {harness: [] for harness in harnesses}
    with tempfile.TemporaryDirectory(prefix="threeloops-class-") as scratch:
        bench = prepare(lab, size, Path(scratch), harnesses)
        for turn in range(repeats):
            # Each turn begins with another harness: none of them always finds the caches that another one filled.
            for offset in range(len(harnesses)):
                harness = harnesses[(turn + offset) % len(harnesses)]
                runs[harness].append(bench.grade(harness))
                require_fair(bench, harness, runs[harness][-1])
        computing = _computing(bench)
    return as_series(lab, size, runs), as_facts(bench, runs, computing)


def require_fair(bench: Bench, harness: str, run: Run) -> None:
    """Raises HarnessFailed where a student is missing, or where ours gives a student anything but what was earned."""
    expected = {s.name: s.score for s in bench.students}
    if missing := sorted(expected.keys() - run.scores.keys()):
        raise HarnessFailed(f"{harness} left {', '.join(missing)} ungraded: its time cannot be compared")
    wrong = {name: score for name, score in run.scores.items() if abs(score - expected[name]) > 1e-9}
    if wrong and harness in (WALLED, OURS):
        first = sorted(wrong)[0]
        raise HarnessFailed(f"{harness} gives {first} {wrong[first]:g} points, and {expected[first]:g} were earned")


def as_series(lab: Lab, size: int, runs: dict[str, list[Run]]) -> list[Series]:
    title = f"lab {lab.slug}, {size} submissions"
    usages = {harness: [run.usage for run in found] for harness, found in runs.items()}
    found = [
        Series(f"{title}: wall time", h, "s", tuple(u.seconds for u in us), peer=h == STOCK) for h, us in usages.items()
    ]
    for kind, name in (("resident", "resident sizes"), ("proportional", "shared pages once")):
        for harness, us in usages.items():
            peaks = tuple(float(getattr(u, f"peak_{kind}_bytes") or 0) for u in us)
            if all(peaks):
                found.append(Series(f"{title}: peak memory, {name}", harness, "bytes", peaks, peer=harness == STOCK))
    return found


def as_facts(bench: Bench, runs: dict[str, list[Run]], computing: list[float]) -> dict[str, Any]:
    """Return the graded class, all points, and the share of each harness's time that is the lab's own computing.

    The share is computing over wall time and jobs: 1.0 would be a harness that costs nothing.
    """
    own = sum(computing)
    share = {}
    for harness, found in runs.items():
        jobs = OURS_JOBS if harness == OURS else 1
        share[harness] = [own / (run.usage.seconds * jobs) for run in found]
    return {
        "students": [{"name": s.name, "kind": s.kind, "earned": s.score} for s in bench.students],
        "scores": {harness: found[0].scores for harness, found in runs.items()},
        "usage": {harness: [asdict(run.usage) for run in found] for harness, found in runs.items()},
        "own_computing_seconds": computing,
        "own_computing_share": share,
    }


def _computing(bench: Bench) -> list[float]:
    arguments = ["-m", "benchmarks.computing", str(bench.lab.root), bench.lab.slug]
    variables = {"THREELOOPS_DEVICE": "cpu", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = run_child(arguments, 600, changes={**variables, "THREELOOPS_HOME": str(bench.lab.root / "home")})
    if done.returncode:
        raise HarnessFailed(f"the class's own code could not be timed: {done.why}")
    return json.loads(done.stdout.strip().splitlines()[-1])
