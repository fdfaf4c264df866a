"""A class that is really graded on this machine, and one of ten thousand on 16 workers, in virtual time.

The simulation uses the service times of the real submissions and the start-up of a real worker. Its shares are those
that `threeloops grade --on slurm` makes. A simulated worker grades one submission at a time, as with `--jobs 1`, or
two, the default. With two at a time each start-up holds two cores, so the same shares are less efficient.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import nbformat
from threeloops.simulation import event_loop
from threeloops_grader.authoring.labs import find_lab
from threeloops_grader.machine.child_process import CODE
from threeloops_grader.machine.provenance import Provenance
from threeloops_grader.sandbox.bwrap import SandboxError, why_not
from threeloops_grader.worklist.share import shares_for, split

from benchmarks.classroom import classroom, hand_in
from benchmarks.process_tree import run_measured
from benchmarks.result import Result, Series, Unmeasured

LAB = "00"
JOBS = 2
SIMULATED = (1_000, 10_000)
WORKERS = 16
SIMULATED_JOBS = (1, JOBS)
SEEDS = 20
STARTS = 5
GOAL = 0.85
"""The parallel efficiency that a class of 10,000 should reach on 16 workers."""
_SECONDS = 3600.0
_LONGEST = 1e9


@dataclass(frozen=True)
class Outcome:
    """A simulated class. `efficiency` is the time of all submissions over the time that cores were held for workers."""

    seconds: float
    efficiency: float
    tasks: int


def measure(provenance: Provenance, *, quick: bool = False, size: int = 1000) -> Result:
    """Grade `size` submissions of lab 00, two at a time; then simulate larger classes with their service times.

    Raises:
        SandboxError: bubblewrap does not work here.
        Unmeasured: the class was not graded, or not with the points that it must earn.
    """
    if reason := why_not():
        raise SandboxError(f"{reason}; the class is graded with the sandbox on")
    size = 3 if quick else size
    with tempfile.TemporaryDirectory(prefix="threeloops-class-") as scratch:
        load = os.getloadavg()[0]
        usage, services = _grade(size, Path(scratch) / "class")
        others = f"{load:.1f} before and {os.getloadavg()[0]:.1f} after the class"
        starts = [_start_up(Path(scratch) / f"one{number}") for number in range(1 if quick else STARTS)]
    start_up = statistics.median(starts)
    title = f"lab 00, {size:,} submissions, {JOBS} at a time"
    series = [
        Series(f"{title}: wall time", "threeloops grade", "s", (usage.seconds,)),
        Series(f"{title}: throughput", "threeloops grade", "records/s", (size / usage.seconds,), better="higher"),
        Series(f"{title}: one submission", "threeloops grade", "s", tuple(services)),
        Series("start of a worker until its first submission", "threeloops grade", "s", tuple(starts)),
    ]
    for kind, peak in (("resident", usage.peak_resident_bytes), ("proportional", usage.peak_proportional_bytes)):
        if peak:
            series.append(Series(f"{title}: peak memory, {kind} sizes", "threeloops grade", "bytes", (float(peak),)))
    facts: dict[str, Any] = {"goal, efficiency": GOAL, "goal, submissions": max(SIMULATED)}
    facts |= {"accepted records": len(services), "load average": others}
    series.extend(simulations(services, start_up))
    settings = {"lab": LAB, "class": size, "jobs": JOBS, "sandbox": "bwrap"}
    return Result("large_class", provenance, settings, series, facts)


def simulations(services: list[float], start_up: float) -> Iterator[Series]:
    """Yield the efficiency and the time of every simulated class, each with `SEEDS` draws of names and service
    times."""
    for count, jobs in product(SIMULATED, SIMULATED_JOBS):
        outcomes = [simulate(count, WORKERS, services, start_up, jobs, seed) for seed in range(SEEDS)]
        at_a_time = f"{jobs} at a time each{' (default of --on slurm)' if jobs == JOBS else ''}"
        what = f"simulated: {count:,} submissions on {WORKERS} workers, {at_a_time}, {outcomes[0].tasks} tasks"
        efficiencies = tuple(outcome.efficiency for outcome in outcomes)
        yield Series(f"{what}: parallel efficiency", "threeloops grade", "", efficiencies, "higher")
        yield Series(f"{what}: time", "threeloops grade", "s", tuple(outcome.seconds for outcome in outcomes))


def simulate(count: int, workers: int, services: list[float], start_up: float, jobs: int = 1, seed: int = 0) -> Outcome:
    """Grade `count` submissions in virtual time. Each takes the time of a random one of `services`. A worker grades
    `jobs` of them at a time and takes the next task when it has finished one. Every task begins with a start-up."""
    draw = random.Random(seed)
    names = [f"student {seed} {number}" for number in range(count)]
    shares = split(names, shares_for(count, workers))
    tasks = [[draw.choice(services) for _ in students] for students in shares.values()]
    waiting = iter(tasks)

    async def worker() -> None:
        for task in waiting:
            await asyncio.sleep(start_up)
            submissions = iter(task)
            await asyncio.gather(*(core(submissions) for _ in range(jobs)))

    async def core(submissions: Iterator[float]) -> None:
        for service in submissions:
            await asyncio.sleep(service)

    async def whole() -> float:
        await asyncio.gather(*(worker() for _ in range(workers)))
        return event_loop.now()

    seconds = event_loop.run(whole, seconds=_LONGEST)
    return Outcome(seconds, sum(map(sum, tasks)) / (workers * jobs * seconds), len(tasks))


def _start_up(folder: Path) -> float:
    """Return the seconds that a worker with one submission takes besides that submission."""
    alone, (service,) = _grade(1, folder)
    return max(0.0, alone.seconds - service)


def _grade(size: int, folder: Path) -> tuple[Any, list[float]]:
    """Grade a class once. Return what it used, and the seconds of each submission. Raises Unmeasured."""
    lab = find_lab(LAB)
    students = list(classroom(lab, nbformat.read(lab.released, as_version=4), size))
    hand_in(students, lab, folder / "submitted")
    words = ["-m", "threeloops_grader.cli", "grade", "--lab", LAB, "--submissions", "submitted"]
    paths = [str(CODE / "lib"), str(CODE / "grader"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    argv = [sys.executable, *words, "--json", "grades.json", "--jobs", str(JOBS)]
    usage = run_measured(argv, folder, environment, folder / "log", _SECONDS)
    if usage.returncode not in (0, 1):
        raise Unmeasured(f"threeloops grade exits {usage.returncode}: {(folder / 'log').read_text()[-500:]}")
    records = json.loads((folder / "grades.json").read_text())["records"]
    accepted = len(list((folder / "submitted" / ".threeloops" / lab.slug).glob("*.json")))
    if (accepted, len(records)) != (size, size):
        raise Unmeasured(f"{accepted} records were accepted and {len(records)} exported; expected {size} of both")
    points = {record["student"]: record["score"] for record in records}
    settled = [student for student in students if student.kind not in ("wrong", "crashing")]  # these may lose a part
    if wrong := [student for student in settled if abs(points[student.name] - student.score) > 1e-9]:
        raise Unmeasured(f"{wrong[0].name} got {points[wrong[0].name]:g} points, and {wrong[0].score:g} were earned")
    return usage, [record["seconds"] for record in records]
