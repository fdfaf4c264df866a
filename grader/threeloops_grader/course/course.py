"""`make course`: release the labs, execute every solution, grade three submissions of each through the wall, report."""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from threeloops.lab import claims

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.course.execute import (
    CourseReport,
    Executed,
    LabOutcome,
    audits,
    execute_solution,
    seconds_to_record,
)
from threeloops_grader.course.kept import keep, kept, source, state
from threeloops_grader.grading.grade import Options, grade_notebook
from threeloops_grader.grading.records import Record, Test
from threeloops_grader.machine.faults import MachineFault
from threeloops_grader.machine.side_by_side import side_by_side
from threeloops_grader.release.release import release
from threeloops_grader.sandbox import bwrap
from threeloops_grader.sandbox.pool import Sandbox, close_pools

__all__ = ["Progress", "Watch", "execute_watched", "labs_at_a_time", "run_course", "submissions", "unsettled"]


@dataclass(frozen=True)
class Progress:
    """Progress of the course, for display: an executed cell, a graded test, or the end of a step."""

    lab: str
    what: str
    cell: int = 0
    of: int = 0
    points: float | None = None
    max_points: float | None = None
    seconds: float = 0.0
    done: bool = False
    error: str = ""


Watch = Callable[[Progress], None]
_CORES = 2
"""How many notebooks and submissions run at the same time, as on the smallest machine."""


def run_course(
    labs: Sequence[Lab],
    reports: Path,
    device: str = "auto",
    watch: Watch = lambda step: None,
    *,
    fresh: bool = True,
    at_a_time: int = 1,
) -> CourseReport:
    """Run all steps for each lab; the executed notebooks go into `reports/executed`.

    Unless the run is `fresh`, a lab is skipped if nothing has changed since its last green run. `at_a_time` labs run
    side by side, each in a process of its own. The sandbox is bubblewrap if it works, else none, and the report says
    which. Faults are collected, not raised. `course_report.write` makes pages of the result. Raises LabError if a
    source breaks a rule.
    """
    started = time.perf_counter()
    release(labs)
    sandbox: Sandbox = "none" if bwrap.why_not() else "bwrap"
    outcomes: dict[str, LabOutcome] = {}
    name = _device_name(device)
    states = {lab.slug: state(lab, name, sandbox) for lab in labs}
    sources = {lab.slug: source(lab) for lab in labs}
    folders = {lab.slug: reports / "executed" / lab.slug for lab in labs}
    for lab in labs:
        if not fresh and (before := kept(lab, folders[lab.slug], states[lab.slug])) is not None:
            outcomes[lab.slug] = before
            watch(Progress(lab.slug, "unchanged", seconds=before.seconds, done=True))
    jobs = [(lab, folders[lab.slug], device, sandbox) for lab in labs if lab.slug not in outcomes]
    for outcome in side_by_side(_run_lab, jobs, watch, at_a_time):
        slug = outcome.lab.slug
        keep(outcome, folders[slug], states[slug], sources[slug])
        outcomes[slug] = outcome
    return CourseReport(name, sandbox, [outcomes[lab.slug] for lab in labs], time.perf_counter() - started)


def labs_at_a_time() -> int:
    """Return how many labs this machine's cores have room for: one for every two cores."""
    return max(1, len(os.sched_getaffinity(0)) // _CORES)


def _run_lab(lab: Lab, folder: Path, device: str, sandbox: Sandbox, watch: Watch) -> LabOutcome:
    """Execute one lab's solution, and grade the reference, the untouched lab and a half-done one.

    The core notebook measures, so it runs alone. Deep dives and gradings share the cores.
    """
    core, *dives = lab.notebooks
    executed = [execute_watched(core, folder, device, watch)]
    given = submissions(lab)
    with ThreadPoolExecutor(_CORES - len(dives)) as beside:
        graded = {name: beside.submit(_grade, lab, name, n, sandbox, watch) for name, (n, _) in given.items()}
        for notebook in dives:
            executed.append(execute_watched(notebook, folder, device, watch, executed))
    outcome = LabOutcome(lab, executed, _device_name(device), sandbox=sandbox)
    for notebook, done in zip(lab.notebooks, executed, strict=True):
        if done.error:
            outcome.faults.append(f"the solution notebook {notebook.stem} failed: {done.error}")
    outcome.faults += unsettled(lab, executed)
    for name, (_, points) in given.items():
        outcome.expected[name] = points
        try:
            record = outcome.grades[name] = graded[name].result()
        except MachineFault as fault:
            outcome.faults.append(f"{name} could not be graded: {fault}")
            continue
        if record.score != points or record.status != "graded":
            why = "; ".join(record.notes + [f"{t.name}: {t.output}" for t in record.tests if t.score != t.max_score])
            outcome.faults.append(f"{name} scored {record.score:g}, expected {points:g} ({why[:600]})")
    close_pools()
    return outcome


def unsettled(lab: Lab, executed: Sequence[Executed]) -> list[str]:
    """Return the faults of a lab's audits: each claim of the lab needs exactly one, and no other lab's claim has any.

    There are none if a notebook failed, because the audits after that cell are missing for a reason that is reported
    already.
    """
    if any(done.error for done in executed):
        return []
    own = {claim.id: claim for claim in claims().values() if int(claim.lab) == lab.number}
    counts = Counter(str(audit["id"]) for done in executed for audit in audits(done.notebook))
    faults = [
        f"claim {claim.id} has no audit: call audit({claim.id!r}, …) in {lab.slug} or its dives ({claim.claim})"
        for claim in own.values()
        if not counts[claim.id]
    ]
    faults += [f"claim {name} has {times} audits: keep one" for name, times in counts.items() if times > 1]
    faults += [f"claim {name} is audited here and belongs to another lab" for name in counts if name not in own]
    return faults


def execute_watched(lab: Lab, folder: Path, device: str, watch: Watch, before: Sequence[Executed] = ()) -> Executed:
    """Execute one notebook of solutions in `folder`, and report each cell and the end to `watch`.

    `before` are the notebooks of the same lab that were executed, which share its seconds for pictures of explorers.
    """
    began = time.perf_counter()

    def on_cell(cell: int, of: int) -> None:
        watch(Progress(lab.stem, "executing", cell, of, seconds=time.perf_counter() - began))

    executed = execute_solution(lab, device, folder, on_cell, record=seconds_to_record(before))
    what = "failed" if executed.error else "executed"
    watch(Progress(lab.stem, what, seconds=executed.seconds, done=True, error=executed.error))
    return executed


def _grade(lab: Lab, name: str, notebook: NotebookNode, sandbox: Sandbox, watch: Watch) -> Record:
    trusted, what, began = manifest(lab), name.replace("_", " "), time.perf_counter()
    scores: list[float] = []

    def on_test(result: Test) -> None:
        scores.append(result.score)
        seconds = time.perf_counter() - began
        watch(Progress(lab.slug, what, len(scores), len(trusted.parts), sum(scores), trusted.max_score, seconds))

    record = grade_notebook(notebook, lab, name, Options(sandbox), on_test)
    watch(Progress(lab.slug, what, 0, 0, record.score, record.max_score, record.seconds, done=True))
    return record


def submissions(lab: Lab) -> dict[str, tuple[NotebookNode, float]]:
    """Return the three submissions that every lab must tell apart, with the score that each must earn."""
    trusted = manifest(lab)
    untouched, half_done = (nbformat.read(lab.released, as_version=4) for _ in range(2))
    first = trusted.exercises[: len(trusted.exercises) // 2]
    answers = {e.id: trusted.text(e.id) for e in first}
    for cell in half_done.cells:
        cell.source = answers.get(cell.id, cell.source)
    return {
        "reference": (lab.master(), trusted.max_score),
        "untouched": (untouched, 0.0),
        "half_done": (half_done, sum(e.points for e in first)),
    }


def _device_name(device: str = "auto") -> str:
    """Return the device of the labs' measurements, `"cpu"` or `"cuda:<device name>"`."""
    import torch

    if device == "cpu" or not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{torch.cuda.get_device_name()}"
