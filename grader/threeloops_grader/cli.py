"""The command line: `threeloops doctor · start · lab · check · status · reset · update · plan · serve · cluster · run ·
grade · release · new · test · mutants · course · evidence`.

Exit codes: 0 all well; 1 a submission or a lab fell short; 2 the command or the machine is at fault, with one sentence
that explains the fault.
"""

import functools
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

__all__ = [
    "Device", "LabName", "LabNames", "command", "course", "doctor", "evidence", "grade", "main", "mutants", "release",
    "run", "say", "update",
]  # fmt: skip

# jsonschema, which nbformat imports, would compile a grammar of internationalised addresses. It takes two of the
# three seconds that a command needs to start, for a format that no notebook schema uses; jsonschema can do without it.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from threeloops.commands.cluster import cluster
from threeloops.commands.faults import CommandError
from threeloops.commands.plan import plan
from threeloops.commands.program import CLUSTER_SETTINGS, SERVE_SETTINGS, add_version
from threeloops.commands.serve import serve

from threeloops_grader.author import commands as author
from threeloops_grader.authoring.labs import Lab, LabError, all_labs, course_root, find_lab
from threeloops_grader.classroom.commands import group as classroom
from threeloops_grader.learner import commands as learner
from threeloops_grader.machine.faults import MachineFault, cause
from threeloops_grader.machine.installed import as_typed

if TYPE_CHECKING:
    from threeloops_grader.course.execute import Executed
    from threeloops_grader.sandbox.pool import Sandbox

_app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Three Loops: an AI-infrastructure course that you execute.\n\n"
    "Begin with [bold]threeloops doctor[/] (can this machine teach you?) and [bold]threeloops lab[/] "
    "(the first lab, in your own copy); [bold]threeloops status[/] says how far you are.",
    epilog="A lab is named by its number, its name or both: 1, 01, roofline, 01_roofline.\n\n"
    "Your copies of labs are in work/: in a checkout or a bundle, the one at its top; anywhere else, work/ of the "
    "nearest folder, yours or one above it, in which you have started a lab. [bold]threeloops start[/] makes it in "
    "your folder. If there is none, commands look in the checkout that threeloops was installed from.\n\n"
    "Your record of passed checks and predictions is in $XDG_STATE_HOME/threeloops, which is ~/.local/state/threeloops "
    "on most machines. Set THREELOOPS_HOME to keep it in another folder.",
)
_console = Console()
_complain = Console(stderr=True)

Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to measure.")]
LabName = Annotated[str, typer.Argument(help="Number or name of the lab.")]
LabNames = Annotated[list[str] | None, typer.Argument(help="Labs; all of them if none is named.")]


def say(message: str) -> None:
    _console.print(escape(as_typed(message)), highlight=False, soft_wrap=True)


def _fail(message: str) -> NoReturn:
    """Print one sentence on stderr and end with exit code 2."""
    _complain.print(f"[bold red]threeloops:[/] {escape(as_typed(message))}", highlight=False, soft_wrap=True)
    raise typer.Exit(2)


def command(function: Callable[..., None], app: typer.Typer = _app, **settings: object) -> Callable[..., None]:
    """Register a command. Its faults, and the machine's, end it with one sentence and exit code 2. `settings` are the
    settings of its click context."""

    @functools.wraps(function)
    def guarded(*args: object, **kwargs: object) -> None:
        try:
            function(*args, **kwargs)
        except typer.Exit:
            raise
        except (CommandError, LabError, MachineFault) as error:
            _fail(str(error))
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in ("threeloops_grader", "threeloops", "benchmarks", ""):
                raise
            from threeloops_grader.machine.installed import how_to_install, origin

            step = how_to_install(origin(), error.name or "")
            _fail(f"{error.name} is not installed, and this command needs it; {step}")
        except FileNotFoundError as error:
            _fail(str(error) if error.errno is None else cause(error))
        except KeyboardInterrupt:
            _fail("stopped; what was finished is kept, and the same command goes on from there")
        except (OSError, MemoryError) as error:
            _fail(f"{cause(error)}. Nothing was left half-written")
        except Exception as error:
            traceback.print_exc()
            _fail(cause(error))

    return app.command(function.__name__.strip("_"), context_settings=settings or None)(guarded)


def _chosen(names: list[str] | None) -> list[Lab]:
    """Return the labs that an author or instructor means, or all of them if none is named."""
    from threeloops_grader.machine.installed import require_solutions

    labs = [find_lab(n) for n in names] if names else all_labs()
    require_solutions(labs)
    return labs


@command
def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False) -> None:
    """Say what this machine can do (versions, interpreter, compiler, ranks, sandbox, GPU) and what would help."""
    from threeloops_grader.doctor.doctor import diagnose, render

    diagnosis = diagnose()
    if as_json:
        print(json.dumps(diagnosis.to_dict(), indent=1))
    else:
        render(diagnosis, _console)
    raise typer.Exit(0 if diagnosis.can_run else 2)


@command
def update(lab: LabName) -> None:
    """Merge a newer release of a lab into your copy; every answer, note and cell of yours is kept."""
    from threeloops_grader.release import student_copies

    say(student_copies.update(find_lab(lab)).message)


@command
def run(labs: LabNames = None, device: Device = "auto") -> None:
    """Execute solution notebooks with plain papermill, every cell, and write them to reports/executed/."""
    from threeloops_grader.course.course import execute_watched
    from threeloops_grader.course.progress import watching

    _require_device(device)
    failed = False
    with watching(_console) as watch:
        for lab in _chosen(labs):
            folder = course_root() / "reports" / "executed" / lab.slug
            executed: list[Executed] = []
            for notebook in lab.notebooks:
                executed.append(execute_watched(notebook, folder, device, watch, executed))
            failed |= any(done.error for done in executed)
    raise typer.Exit(1 if failed else 0)


def _require_device(device: str) -> None:
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            _fail("--device cuda: this machine shows no CUDA device; `threeloops doctor` says why. Use --device cpu.")


_CLUSTER = {"rich_help_panel": "More than one machine"}
_Workers = Annotated[int, typer.Option(min=1, help="Tasks that run at the same time.", **_CLUSTER)]
_Memory = Annotated[str, typer.Option(help="Memory of a task, as the engine writes it.", **_CLUSTER)]
_Gpus = Annotated[int, typer.Option(min=0, help="GPUs of a task.", **_CLUSTER)]
_Retries = Annotated[int, typer.Option(min=0, help="How often lost tasks run again.", **_CLUSTER)]
_Partition = Annotated[str | None, typer.Option(help="Slurm's partition.", **_CLUSTER)]
_Account = Annotated[str | None, typer.Option(help="Slurm's account.", **_CLUSTER)]
_Minutes = Annotated[int, typer.Option(min=1, help="Slurm's time limit of a task.", **_CLUSTER)]


@command
def grade(
    lab: Annotated[str, typer.Option("--lab", help="Number or name of the lab.")],
    submissions: Annotated[Path, typer.Option("--submissions", help="Folder of DIR/<student>/<lab>/<lab>.ipynb.")],
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all records to this file.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, max=64, help="Submissions graded at a time.")] = 2,
    only: Annotated[str | None, typer.Option("--only", help="Grade one exercise (its GRADE_ID).")] = None,
    sandbox: Annotated[
        Literal["auto", "bwrap", "none"], typer.Option(help="none: run submissions without isolation.")
    ] = "auto",
    fresh: Annotated[bool, typer.Option("--fresh", help="Grade again what an earlier run has graded.")] = False,
    gradebook: Annotated[
        str | None, typer.Option(help="Feed nbgrader's gradebook, e.g. sqlite:///gradebook.db.")
    ] = None,
    gradescope: Annotated[Path | None, typer.Option(help="Write <student>.json for Gradescope to this folder.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the class as one page: points, and why.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write a table of the scores to this file.")] = None,
    keep_notebooks: Annotated[
        bool, typer.Option("--keep-notebooks", help="Keep executed notebooks, which `class grade` then uses.")
    ] = False,
    records: Annotated[
        list[Path] | None,
        typer.Option("--records", help="Folder of finished records; by default DIR/.threeloops.", **_CLUSTER),
    ] = None,
    shard: Annotated[
        str | None, typer.Option("--shard", help="Grade share I of N (0/4 to 3/4), and export nothing.", **_CLUSTER)
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Grade nothing; put the records together, and export.", **_CLUSTER)
    ] = False,
    on: Annotated[
        Literal["here", "slurm", "kubernetes"],
        typer.Option("--on", help="slurm: run array jobs. kubernetes: print an Indexed Job.", **_CLUSTER),
    ] = "here",
    shares: Annotated[int | None, typer.Option(min=1, max=10_000, help="Tasks of the job.", **_CLUSTER)] = None,
    workers: _Workers = 16,
    memory: _Memory = "4G",
    gpus: _Gpus = 0,
    retries: _Retries = 3,
    partition: _Partition = None,
    account: _Account = None,
    minutes: _Minutes = 60,
    image: Annotated[str | None, typer.Option(help="Kubernetes: the image of the grader.", **_CLUSTER)] = None,
    claim: Annotated[
        str | None, typer.Option(help="Kubernetes: the volume claim, mounted at /class.", **_CLUSTER)
    ] = None,
) -> None:
    """Grade a class through the wall. An interrupted run continues where it stopped.

    Exits 0 when every student earned full points, 1 when a student fell short or could not be graded, and 2 when the
    command or the machine is at fault. Then all points stay as they were, and finished grades are kept. With --shard,
    exits 0 when the share is graded, and 3 when this machine cannot isolate submissions.
    """
    from threeloops_grader.course import cluster_command, grade_command

    (target,) = _chosen([lab])
    to = {"json": json_file, "html": html, "csv": csv, "gradescope": gradescope}
    job = cluster_command.ClassJob(target, submissions, records or [], only, sandbox, jobs, keep_notebooks)
    to_all = {**to, "gradebook": gradebook}
    engines = {"slurm": {"partition": partition, "account": account}, "kubernetes": {"image": image, "claim": claim}}
    cluster_command.require_one_way(shard=shard, merge=merge, on=on, fresh=fresh, to=to_all, engines=engines)
    asked = {"workers": workers, "memory": memory, "gpus": gpus, "retries": retries, "cores": jobs}
    if shard is not None:
        raise typer.Exit(cluster_command.grade_share(job, shard, _console, fresh=fresh))
    if on == "kubernetes":
        print(cluster_command.on_kubernetes(job, image, claim, shares, asked), end="")
        return
    if merge:
        report = cluster_command.merged(job, _console)
    elif on == "slurm":
        asked |= {"partition": partition, "account": account, "minutes": minutes}
        report = cluster_command.on_slurm(job, shares, asked, _console, fresh=fresh)
    else:
        report = grade_command.run(
            target,
            submissions,
            jobs=jobs,
            only=only,
            sandbox=sandbox,
            fresh=fresh,
            console=_console,
            records=job.named,
            keep_executed=keep_notebooks,
        )
    grade_command.export(report, target, submissions=submissions, gradebook=gradebook, **to)
    full = all(r.status == "graded" and r.score == r.max_score for r in report.records)
    raise typer.Exit(0 if full else 1)


@command
def release(
    labs: LabNames = None,
    check_only: Annotated[bool, typer.Option("--check", help="Only say what in labs/ is not current.")] = False,
) -> None:
    """Generate labs/ (and the notebooks that nbgrader reads) from solutions/."""
    from threeloops_grader.release import release

    if check_only:
        differences = release.stale(_chosen(labs))
        for line in differences:
            _console.print(f"[red]✗[/] {escape(line)}", highlight=False)
        if differences:
            say("labs/ is generated: `threeloops release` makes it again, and what was edited there by hand is lost")
        raise typer.Exit(1 if differences else 0)
    for path in release.release(_chosen(labs)):
        _console.print(f"[green]✓[/] {path.relative_to(course_root())}", highlight=False)
    for slug in release.not_on_the_map(_chosen(labs)):
        say(f"{slug} is not on the map of the course: README.md, labs/course.md and lab 00 do not show it")


@command
def mutants(
    labs: Annotated[list[str], typer.Argument(help="Labs whose reference answers are mutated.")],
    exercise: Annotated[str, typer.Option(help="Only this exercise of the lab.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Submissions graded at a time.")] = 2,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every mutant and what caught it.")] = None,
) -> None:
    """Put small faults into the reference answers, one at a time, and see which ones the tests notice. For authors.

    Exits 0 when 99% of the mutants are caught, and 90% by visible tests alone. Mutants that no test can notice are
    listed with a reason in the lab's equivalent_mutants.json and not counted.
    """
    from threeloops.files import replace_text

    from threeloops_grader.grading.records import to_json
    from threeloops_grader.mutation import report
    from threeloops_grader.mutation.run import run as run_mutants
    from threeloops_grader.sandbox import bwrap

    verdicts = {}
    for lab in _chosen(labs):
        with _console.status(f"Lab {lab.slug}") as status:

            def watch(what: str, done: int, of: int, lab: Lab = lab) -> None:
                status.update(f"Lab {lab.slug}: {what}, submission {done} of {of}")

            sandbox: Sandbox = "none" if bwrap.why_not() else "bwrap"
            verdicts[lab] = run_mutants(lab, sandbox, only=exercise, jobs=jobs, watch=watch)
        report.print_report(lab, verdicts[lab], _console)
    if json_file is not None:
        replace_text(json_file, to_json([report.to_dict(lab, verdict) for lab, verdict in verdicts.items()]))
    raise typer.Exit(0 if all(map(report.is_enough, verdicts.values())) else 1)


@command
def course(
    device: Device = "auto",
    fresh: Annotated[bool, typer.Option("--fresh", help="Run every lab, also those that have not changed.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Labs side by side; 0: one for every two cores.")] = 0,
    lab: Annotated[list[str] | None, typer.Option("--lab", help="Run only this lab, and write no report.")] = None,
    on: Annotated[
        Literal["here", "slurm"], typer.Option("--on", help="slurm: an array job with a task for each lab.", **_CLUSTER)
    ] = "here",
    workers: _Workers = 16,
    memory: _Memory = "8G",
    gpus: _Gpus = 0,
    retries: _Retries = 1,
    partition: _Partition = None,
    account: _Account = None,
    minutes: _Minutes = 60,
) -> None:
    """Run the whole course: release, execute, grade three submissions of each lab, report (what `make course` does).

    Skips unchanged labs that passed last time. --fresh runs all labs.
    """
    from threeloops_grader.course.cluster_command import course_on_slurm, require_engine
    from threeloops_grader.course.course import labs_at_a_time, run_course
    from threeloops_grader.course.course_report import write
    from threeloops_grader.course.progress import watching

    reports = course_root() / "reports"
    require_engine(on, {"slurm": {"partition": partition, "account": account}})
    if on == "slurm":
        asked = {"workers": workers, "memory": memory, "gpus": gpus, "retries": retries, "partition": partition}
        asked |= {"account": account, "minutes": minutes}
        report = course_on_slurm(_chosen(lab), reports, device, asked, _console, fresh=fresh)
    else:
        _require_device(device)
        with watching(_console) as watch:
            side_by_side = jobs or labs_at_a_time()
            report = run_course(_chosen(lab), reports, device, watch, fresh=fresh, at_a_time=side_by_side)
    if not lab:
        write(report, reports)
    narrow = {"no_wrap": True, "justify": "right"}
    columns = [Column(name, **narrow) for name in ("seconds", "reference", "untouched", "half done")]  # type: ignore[arg-type]
    title = f"Three Loops on {report.device}, sandbox: {report.sandbox}"
    table = Table(Column("lab", no_wrap=True), *columns, title=title, title_justify="left", box=None, pad_edge=False)
    for o in report.labs:
        scores = [f"{r.score:g} / {r.max_score:g}" for r in o.grades.values()]
        table.add_row(o.lab.slug, "unchanged" if o.before else f"{o.seconds:.1f}", *scores)
    _console.print(table)
    if report.sandbox == "none":
        _console.print("[bold yellow]Graded without isolation (sandbox: none)[/]: bubblewrap does not work here.")
    for fault in report.faults:
        _console.print(f"[red]✗[/] {escape(fault)}", highlight=False, soft_wrap=True)
    if not lab:
        _console.print(f"reports/course.html · reports/course.json · reports/junit.xml ({report.seconds:.0f} s)")
    raise typer.Exit(1 if report.faults else 0)


@command
def evidence(
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="Folder for the JSON; benchmarks/evidence by default.")] = None,
    part: Annotated[
        list[str] | None, typer.Option("--part", help="Only these: faults, numbers, record, or the name of a part.")
    ] = None,
    budget: Annotated[float, typer.Option(min=30, help="Seconds that this call may take.")] = 525,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and check what they name.")] = False,
) -> None:
    """Run all measurements that this machine supports and write them as JSON. Installs nothing. A missing GPU is
    SKIPPED.

    Faults come first, then numbers, then the record. A call ends within its budget, and the next one continues.
    """
    from threeloops_grader.evidence.collect import collect
    from threeloops_grader.evidence.collect import dry_run as rehearse

    folder = out or course_root() / "benchmarks" / "evidence"
    if dry_run:
        raise typer.Exit(rehearse(device, folder, _console, part or ()))
    raise typer.Exit(collect(device, folder, _console, part or (), budget))


for _function in (learner.start, learner.lab, learner.check, learner.status, learner.reset):
    command(_function)
for _function in (author.new, author.test, author.leaks):
    command(_function)
command(plan)
command(serve, _app, **SERVE_SETTINGS)
command(cluster, _app, **CLUSTER_SETTINGS)
classroom.add_commands(_app, command)
add_version(_app)


def main() -> None:
    """Entry point of the `threeloops` command."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a normal exit, so that the warm processes are ended
    os.environ.pop("JPY_SESSION_NAME", None)  # of a notebook that called `!threeloops`: nobody sits before its kernels
    _app()


if __name__ == "__main__":
    main()
