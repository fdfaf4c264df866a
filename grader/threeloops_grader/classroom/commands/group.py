"""The group `threeloops class` and `threeloops submit` on the command line."""

from collections.abc import Callable

import typer

from threeloops_grader.classroom.commands.grading import check, grade
from threeloops_grader.classroom.commands.handing_in import collect, similar, submit
from threeloops_grader.classroom.commands.regrading import log, regrade, who
from threeloops_grader.classroom.commands.results import export, feedback
from threeloops_grader.classroom.commands.term import gradescope, init, release

__all__ = ["add_commands"]


def add_commands(app: typer.Typer, command: Callable[..., object]) -> None:
    """Add `submit` and the group `class` to the command line; `command(function, app)` registers one."""
    command(submit, app)
    steps = typer.Typer(
        no_args_is_help=True,
        help="Teach: roster, release, collect, grade, check, regrade, feedback, export, log, similar answers.",
    )
    for step in (init, release, collect, grade, check, regrade, feedback, export, log, who, similar, gradescope):
        command(step, steps)
    app.add_typer(steps, name="class")
