"""The learner's commands: `threeloops start · lab · check · status · reset`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from threeloops_grader.authoring.labs import LabError, all_labs, find_lab, work_folder
from threeloops_grader.machine.installed import as_typed

__all__ = ["check", "lab", "reset", "start", "status"]

_console = Console()
_Name = Annotated[str, typer.Argument(help="Number or name of the lab.")]


def _say(message: str) -> None:
    _console.print(escape(as_typed(message)), highlight=False, soft_wrap=True)


def _refuse(message: str) -> NoReturn:
    raise LabError(message)


def start(lab: _Name) -> None:
    """Make your own copy of a lab in work/ of the folder that you are in. Never overwrites one that is there.

    Inside a checkout or a bundle of the course, the copy goes to work/ at its top.
    Below a folder in which you have started labs, it joins them.
    """
    from threeloops_grader.release import student_copies

    chosen = replace(find_lab(lab), work_elsewhere=work_folder(starting=True))
    if student_copies.start(chosen):
        _say(f"Your copy is {chosen.work}. Open it with `threeloops lab {lab}`; no command overwrites it.")
    else:
        _say(f"You have started this lab already; your copy is {chosen.work} and was not touched.")


def lab(
    name: Annotated[str, typer.Argument(metavar="[LAB]", help="Number or name of the lab.")] = "00",
    more: Annotated[list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="Go to JupyterLab.")] = None,
) -> None:
    """Open a lab in JupyterLab, in your own copy, which is made if there is none."""
    from threeloops_grader.learner.open_lab import open_lab
    from threeloops_grader.release import student_copies

    chosen = find_lab(name)
    student_copies.start(chosen)
    open_lab(chosen, more or [])


def check(
    notebook: Annotated[
        str, typer.Argument(metavar="LAB", help="Number or name of a lab, for your copy in work/; or a notebook file.")
    ],
    full: Annotated[bool, typer.Option("--full", help="Grade it: hidden tests too, through the wall.")] = False,
) -> None:
    """Run your notebook's visible tests, as you would by hand, and print the exercises that pass and their points.

    There is no sandbox and nothing is withheld, because it is your own code. With --full it is graded like a
    submission, hidden tests included.
    """
    from threeloops.lab.course import journal

    from threeloops_grader.authoring.manifest import test_title
    from threeloops_grader.grading.grade import Options, grade_notebook
    from threeloops_grader.learner.notebooks import own_notebook
    from threeloops_grader.learner.progress import key
    from threeloops_grader.machine.installed import require_solutions
    from threeloops_grader.sandbox import bwrap

    path, content, chosen = own_notebook(notebook)
    if full:
        number = f"{chosen.number:02d}"
        require_solutions(
            [chosen],
            f". --full needs the hidden tests in it. Here `threeloops check {number}` runs the visible ones, and "
            f"`threeloops submit {number}` makes the file that your instructor grades with all of them",
        )
    how = Options("none" if bwrap.why_not() else "bwrap") if full else Options("none", visible=True)
    record = grade_notebook(content, chosen, "you", how)
    if record.status == "failed":
        _refuse(f"{path}: {' '.join(record.notes)}")
    for test in record.tests:
        passed = test.score == test.max_score
        mark = "[green]✓[/]" if passed else "[red]✗[/]"
        _console.print(f"{mark} {test_title(test.name)}  {test.score:g} / {test.max_score:g}", highlight=False)
        if not passed:
            _console.print(f"    {test.output}".replace("\n", "\n    "), markup=False, highlight=False)
    for note in record.notes:
        _console.print(f"[dim]note: {escape(note)}[/]", highlight=False)
    if record.reflection == "incomplete":
        _console.print("[dim]the written reflection is still empty (it carries no points)[/]")
    if path.resolve() == chosen.work.resolve():  # another file of the lab says nothing about your own copy
        results = {key(test.name): test.score == test.max_score for test in record.tests}
        journal.note_checked(chosen.copies, chosen.slug, results)
    by = "" if full else " by the visible checks"
    _console.print(f"{record.score:g} of {record.max_score:g} points{by}", highlight=False)
    if record.score == record.max_score and not full and chosen.has_answers:
        _say(f"All visible tests pass. `threeloops check {notebook} --full` tries the hidden ones too.")
    raise typer.Exit(0 if record.score == record.max_score else 1)


def status() -> None:
    """Say how far you are: points, minutes and the next step, for each lab and in all."""
    from threeloops.lab.course import journal

    from threeloops_grader.learner.progress import next_step, standing

    passed = journal.passed(work_folder())
    standings = [standing(lab, passed.get(lab.slug, set())) for lab in all_labs()]
    right = {"justify": "right", "no_wrap": True}
    columns = (Column("lab", no_wrap=True), Column("points", **right), Column("minutes", **right))  # type: ignore[arg-type]
    table = Table(*columns, Column("next", no_wrap=True), box=None, pad_edge=False)
    for row in standings:
        ahead = "done" if row.done else row.next_exercise if row.started or row.points else "not started"
        table.add_row(row.lab.slug, f"{row.points:g} / {row.of:g}", str(row.minutes), ahead)
    _console.print(table, highlight=False)
    points = sum(row.points for row in standings)
    of = sum(row.of for row in standings)
    minutes_left = sum(row.minutes_left for row in standings)
    minutes = sum(row.minutes for row in standings)
    _say(f"{points:g} of {of:g} points; about {minutes_left / 60:.0f} of {minutes / 60:.0f} hours are left.")
    _say(next_step(standings))
    _say("Points count visible checks that passed when they last ran, in JupyterLab or in `threeloops check`.")
    _say(f"Your copies are in {work_folder()}.")


def reset(
    exercise: Annotated[str, typer.Argument(help="The exercise, as `threeloops status` calls it.")],
    lab: Annotated[str | None, typer.Option("--lab", help="The lab, where several have such an exercise.")] = None,
) -> None:
    """Put one exercise of your copy back to the released cell. Your answer is kept in a file beside the notebook."""
    from threeloops_grader.learner.reset import reset as put_back

    chosen, backup = put_back(exercise, lab)
    if backup is None:
        _say(f"{exercise} of {chosen.slug} is as it was released; nothing was changed.")
    else:
        _say(f"{exercise} of {chosen.slug} is as it was released. Your answer is in {_relative(backup)}.")
        _say("If the notebook is open in JupyterLab: File, Reload Notebook from Disk.")


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
