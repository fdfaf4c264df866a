"""`threeloops grade` on more than one machine: a share of a class, all shares on a cluster, and the merge.

Every worker of a cluster imports this module, so it imports nbgrader and papermill only where a course is run.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.course import grade_command
from threeloops_grader.grading.grade import Options
from threeloops_grader.grading.records import ClassReport
from threeloops_grader.machine.faults import MachineFault
from threeloops_grader.sandbox.bwrap import SandboxError
from threeloops_grader.sandbox.pool import Sandbox, choose
from threeloops_grader.submissions import reading as submissions
from threeloops_grader.worklist.grade_class import decides
from threeloops_grader.worklist.merge import Merged, merge, ungraded
from threeloops_grader.worklist.nodes import UNFIT, forget_unfit, note_unfit, this_node, unfit_nodes
from threeloops_grader.worklist.share import Share, equal_shares, shares_for, split
from threeloops_grader.worklist.store import RecordStore

if TYPE_CHECKING:
    from threeloops_grader.course.execute import CourseReport, LabOutcome

__all__ = [
    "ClassJob",
    "course_on_slurm",
    "grade_share",
    "merged",
    "on_kubernetes",
    "on_slurm",
    "require_engine",
    "require_one_way",
]


@dataclass(frozen=True)
class ClassJob:
    """The class to grade and how. `records` holds more than one folder only for a merge."""

    lab: Lab
    folder: Path
    records: list[Path]
    only: str | None = None
    sandbox: str = "auto"
    jobs: int = 2
    keep_executed: bool = False

    @property
    def named(self) -> Path | None:
        """The folder of records that was asked for, if any."""
        if len(self.records) > 1:
            raise LabError(f"--records was given {len(self.records)} times; only --merge reads several folders")
        return self.records[0] if self.records else None

    @property
    def place(self) -> Path:
        return self.named or self.folder / ".threeloops"

    @property
    def options(self) -> Options:
        """Return the options that decide points, without a look at whether this machine has the sandbox."""
        only = manifest(self.lab).exercise(self.only).id if self.only is not None else None
        sandbox: Sandbox = "none" if self.sandbox == "none" else "bwrap"
        return Options(sandbox, jobs=self.jobs, only=only, records=self.place, keep_executed=self.keep_executed)

    def words(self, program: list[str], folder: Path, records: Path) -> list[str]:
        """Return the command line that grades a share of this class, without the share."""
        words = [*program, "grade", "--lab", self.lab.slug, "--submissions", str(folder), "--records", str(records)]
        words += ["--sandbox", self.sandbox, "--jobs", str(self.jobs)]
        words += ["--only", self.only] if self.only else []
        return words + (["--keep-notebooks"] if self.keep_executed else [])


def require_one_way(
    *,
    shard: str | None,
    merge: bool,
    on: str,
    fresh: bool,
    to: Mapping[str, object],
    engines: Mapping[str, Mapping[str, object]] | None = None,
) -> None:
    """Raise LabError if the options of a command contradict each other, or if one has no meaning without an engine.
    `engines` holds the options of each engine."""
    require_engine(on, engines or {})
    ways = [f"--shard {shard}"] if shard is not None else []
    ways += ["--merge"] if merge else []
    ways += [f"--on {on}"] if on != "here" else []
    if len(ways) > 1:
        raise LabError(f"{' and '.join(ways)} exclude each other: give one of them")
    exports = [f"--{name}" for name, place in to.items() if place is not None]
    if exports and shard is not None:
        raise LabError(f"{ways[0]} grades a part of the class, so {', '.join(exports)} cannot be written; use --merge")
    if on == "kubernetes" and (ignored := exports + (["--fresh"] if fresh else [])):
        raise LabError(
            f"--on kubernetes prints a job and grades nothing, so {', '.join(ignored)} cannot be carried out. Export "
            "with --merge after the job; to grade again, remove the lab's folder of records before it"
        )
    if merge and fresh:
        raise LabError("--merge grades nothing, so --fresh has no meaning; grade the shares with --fresh")


def require_engine(on: str, engines: Mapping[str, Mapping[str, object]]) -> None:
    """Raise LabError if an option was given that another engine needs than `on`. `engines` holds those of each."""
    for engine, options in engines.items():
        names = [f"--{name} {value}" for name, value in options.items() if value is not None]
        if names and on != engine:
            instead = "without --on" if on == "here" else f"with --on {on}"
            raise LabError(f"{', '.join(names)} has no meaning {instead}: leave it out, or add --on {engine}")


def grade_share(job: ClassJob, shard: str, console: Console, *, fresh: bool) -> int:
    """Grade a share, such as "0/4". Return the exit code: 0 if all of it is graded, whatever the points; `UNFIT` if
    this machine cannot isolate submissions."""
    share = Share.parse(shard)
    try:
        choose(job.sandbox)
    except SandboxError as error:
        note_unfit(job.place, str(error))
        print(f"threeloops: node {this_node()} cannot grade share {share}: {error}", file=sys.stderr)
        return UNFIT
    grade_command.run(
        job.lab,
        job.folder,
        jobs=job.jobs,
        only=job.only,
        sandbox=job.sandbox,
        fresh=fresh,
        console=console,
        records=job.place,
        share=share,
        keep_executed=job.keep_executed,
    )
    return 0


def merged(job: ClassJob, console: Console) -> ClassReport:
    """Return the whole class from its records. Raises MachineFault, which names the gaps, if it is not complete."""
    started = time.perf_counter()
    records = job.records or [job.place]
    if missing := [str(path) for path in records if not path.is_dir()]:
        raise FileNotFoundError(f"--records {', '.join(missing)} is not a folder; grade with --shard first")
    whole: Merged = merge(job.folder, job.lab, replace(job, records=records[:1]).options, records)
    if whole.double:
        console.print(f"{len(whole.double)} submissions were graded twice, with the same result", highlight=False)
    if not whole.is_complete:
        raise MachineFault(f"nothing was written: {'. '.join(whole.faults())}")
    grade_command.print_result(whole.report, console, time.perf_counter() - started)
    return whole.report


def on_slurm(job: ClassJob, shares: int | None, asked: dict[str, Any], console: Console, *, fresh: bool) -> ClassReport:
    """Grade a class as array jobs of Slurm, and return the report of all records. `asked` are fields of `Slurm`."""
    from threeloops_grader.worklist.slurm import Refused, Slurm, require_slurm, run_on_slurm

    require_slurm()
    place = grade_command.records_folder(job.folder, job.place, console) or job.place
    store = RecordStore(place, job.lab.slug)
    handed_in = submissions.find(job.folder, job.lab)
    plan = equal_shares(shares) if shares else shares_for(len(handed_in), asked["workers"])
    forget_unfit(place)
    was_graded = False
    program = [sys.executable, "-m", "threeloops_grader.cli"]
    words = job.words(program, job.folder.absolute(), place.absolute())

    def left() -> list[list[str]]:
        nonlocal was_graded
        names = [s.student for s in ungraded(job.folder, job.lab, job.options, store, was_graded=was_graded)]
        was_graded = True
        if names:
            console.print(f"{len(names)} of {len(handed_in)} submissions are to be graded", highlight=False)
        return [[*words, "--shard", str(share)] for share in split(names, plan)]

    with store.forgotten(decides(job.lab, job.options), unless=Refused) if fresh else nullcontext():
        run_on_slurm(left, Slurm(**asked), place.absolute() / "slurm", _sayer(console), lambda: unfit_nodes(place))
    return merged(job, console)


def on_kubernetes(
    job: ClassJob, image: str | None, claim: str | None, shares: int | None, asked: dict[str, Any]
) -> str:
    """Return the YAML of an Indexed Job that grades the class. `asked` are fields of `Kubernetes`."""
    from threeloops_grader.worklist.kubernetes import MOUNT, Kubernetes, indexed_job

    if not image or not claim:
        raise LabError(
            "--on kubernetes needs --image (docs/teaching/cluster.md builds one) and --claim, the volume claim that "
            f"holds the submissions; it is mounted at {MOUNT}"
        )
    for name, path in (("--submissions", job.folder), ("--records", job.place)):
        if not path.is_relative_to(MOUNT):
            raise LabError(
                f"{name} {path}: expected the path that the pods see, below {MOUNT}, where --claim is mounted"
            )
    request = Kubernetes(image, claim, shares or asked["workers"], **asked)
    return indexed_job(job.lab.slug, job.words(["threeloops"], job.folder, job.place), request)


def course_on_slurm(
    labs: Sequence[Lab], reports: Path, device: str, asked: dict[str, Any], console: Console, *, fresh: bool
) -> "CourseReport":
    """Run the course as an array of Slurm with one task for each lab, and return the report of what the tasks left in
    `reports`. A lab that passed before, on any machine, is skipped, unless the run is `fresh`. If Slurm refuses the
    request, the notes of earlier runs stay as they were."""
    from threeloops_grader.course.execute import CourseReport
    from threeloops_grader.course.kept import finished, set_aside, source
    from threeloops_grader.release.release import release
    from threeloops_grader.worklist.slurm import Refused, Slurm, require_slurm, run_on_slurm

    require_slurm()
    started = time.perf_counter()
    release(labs)
    sources = {lab.slug: source(lab) for lab in labs}
    folders = {lab.slug: reports.absolute() / "executed" / lab.slug for lab in labs}

    def outcome_of(lab: Lab) -> "LabOutcome | None":
        return finished(lab, folders[lab.slug], sources[lab.slug])

    before = {lab.slug for lab in labs if not fresh and (run := outcome_of(lab)) is not None and not run.faults}
    asides = [set_aside(folders[lab.slug]) for lab in labs if lab.slug not in before]

    def left() -> list[list[str]]:
        words = [sys.executable, "-m", "threeloops_grader.cli", "course", "--device", device, "--lab"]
        return [[*words, lab.slug] for lab in labs if outcome_of(lab) is None]

    why = ""
    try:
        run_on_slurm(left, Slurm(**asked), reports.absolute() / "slurm", _sayer(console))
    except Refused:
        for bring_back in asides:
            bring_back()
        raise
    except MachineFault as fault:
        why = str(fault)
    outcomes = [outcome_of(lab) or _lost(lab, why) for lab in labs]
    for outcome in outcomes:
        outcome.before = outcome.lab.slug in before
    devices = ", ".join(dict.fromkeys(outcome.verified_on for outcome in outcomes))
    is_isolated = all(outcome.sandbox == "bwrap" for outcome in outcomes if outcome.grades)
    return CourseReport(devices, "bwrap" if is_isolated else "none", outcomes, time.perf_counter() - started)


def _lost(lab: Lab, why: str) -> "LabOutcome":
    from threeloops_grader.course.execute import Executed, LabOutcome

    unread = [Executed(notebook.master(), 0.0, "not executed") for notebook in lab.notebooks]
    return LabOutcome(lab, unread, "none", faults=[f"Slurm did not finish it: {why}"])


def _sayer(console: Console) -> Callable[[str], None]:
    return lambda message: console.print(message, highlight=False, markup=False)
