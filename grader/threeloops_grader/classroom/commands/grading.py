"""`threeloops class grade` and `check`: points, and the account of a class."""

import os
from typing import Annotated

import typer

from threeloops_grader.authoring.labs import Lab, find_lab
from threeloops_grader.classroom.commands.steps import (
    LabName,
    account_of,
    exit_code,
    failure,
    print_account,
    scores_of,
    whole_lab,
)
from threeloops_grader.classroom.register import settings as register

__all__ = ["check", "grade"]


def grade(
    lab: LabName,
    again: Annotated[bool, typer.Option("--again", help="Grade again what is graded already.")] = False,
    sandbox: Annotated[str, typer.Option(help="auto, bwrap, or none: run submissions without isolation.")] = "auto",
    jobs: Annotated[
        int, typer.Option("--jobs", min=0, max=64, help="Submissions executed at a time; 0: one for every core.")
    ] = 0,
) -> None:
    """Grade through the wall (nbgrader autograde), late penalties included. If a submission is refused, exit with 1."""
    from threeloops_grader.classroom.ahead import execute_ahead

    target = whole_lab(lab)
    for line in _best_attempts(target, sandbox):
        print(line)
    executed = execute_ahead(target, jobs or len(os.sched_getaffinity(0)), sandbox, again=again)
    more = ["--force"] if again else []
    more += [f"--WalledExecute.executed={executed}"] if executed else []
    words = ("autograde", target.slug, f"--WalledExecute.sandbox={sandbox}", *more)
    code = exit_code(*words)
    rows = account_of(target)
    if code == 1 and any(row.refused for row in rows):  # all others are graded
        raise typer.Exit(1)
    if code:
        raise failure(words)


def _best_attempts(target: Lab, sandbox: str) -> list[str]:
    """Let the best of several attempts count, if the class has that rule."""
    if register.load().attempts != "best":
        return []
    from threeloops_grader.classroom.deadlines.best_attempt import place_best
    from threeloops_grader.classroom.deadlines.penalties import read_terms
    from threeloops_grader.classroom.enrolment import gradebook
    from threeloops_grader.sandbox.pool import choose

    with gradebook() as book:
        terms = read_terms(book, target.root)
    return place_best(target, terms, choose(sandbox))


def check(lab: LabName) -> None:
    """Say who on the roster is graded, who is not and why, and who handed in nothing."""
    print_account(find_lab(lab), *scores_of(find_lab(lab)))
