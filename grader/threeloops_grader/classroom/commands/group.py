"""The group `threeloops class` and `threeloops submit` on the command line."""

from collections.abc import Callable

import typer

from threeloops_grader.classroom.commands import lms
from threeloops_grader.classroom.commands.grading import check, grade
from threeloops_grader.classroom.commands.handing_in import collect, similar, submit
from threeloops_grader.classroom.commands.regrading import log, regrade, who
from threeloops_grader.classroom.commands.results import export, feedback
from threeloops_grader.classroom.commands.term import extend, gradescope, groups, init, release

__all__ = ["add_commands"]


def add_commands(app: typer.Typer, command: Callable[..., object]) -> None:
    """Add `submit` and the group `class` to the command line; `command(function, app)` registers one."""
    command(submit, app)
    steps = typer.Typer(
        no_args_is_help=True,
        help="Teach: roster, extensions, groups, release, collect, grade, check, regrade, feedback, export, log.",
    )
    of_class = (init, extend, groups, release, collect, grade, check, regrade, feedback, export, log, who, similar)
    for step in (*of_class, gradescope):
        command(step, steps)
    platform = typer.Typer(no_args_is_help=True, help="Fetch the roster from an LMS and push grades to it (LTI 1.3).")
    command(lms.init, platform)
    command(lms.push, platform)
    steps.add_typer(platform, name="lms")
    app.add_typer(steps, name="class")
