"""`threeloops class grade` and `check`: points, and the account of a class."""

from contextlib import suppress
from typing import Annotated, Literal

import typer

from threeloops_grader.authoring.labs import Lab, LabError, find_lab
from threeloops_grader.classroom.commands.steps import (
    LabName,
    account_of,
    exit_code,
    failure,
    points_of,
    print_account,
    scores_of,
    whole_lab,
)
from threeloops_grader.classroom.register import log
from threeloops_grader.classroom.register import settings as register
from threeloops_grader.machine.faults import MachineFault
from threeloops_grader.machine.terminal import plain

__all__ = ["check", "grade"]


def grade(
    lab: LabName,
    again: Annotated[bool, typer.Option("--again", help="Grade again what is graded already.")] = False,
    sandbox: Annotated[
        Literal["auto", "bwrap", "none"], typer.Option(help="none: run submissions without isolation.")
    ] = "auto",
    jobs: Annotated[
        int,
        typer.Option("--jobs", min=0, max=64, help="Submissions executed at a time; 0: one for every core."),
    ] = 0,
) -> None:
    """Grade through the wall (nbgrader autograde), late penalties included. If a submission is refused, exit with 1."""
    from threeloops_grader.classroom.ahead import default_jobs, execute_ahead
    from threeloops_grader.classroom.regrading.lock import alone
    from threeloops_grader.classroom.results.handins import refused_strangers

    target = whole_lab(lab)
    jobs = jobs or default_jobs(target)
    command = f"class grade {target.number:02d}{' --again' if again else ''}"
    with alone(target, f"threeloops {command}") as lock:
        for line in _best_attempts(target, sandbox, jobs):
            print(plain(line))
        before = points_of(target)
        executed = execute_ahead(target, jobs, sandbox, again=again)
        more = ["--force"] if again else []
        more += [f"--WalledExecute.executed={executed}"] if executed else []
        words = ("autograde", target.slug, f"--WalledExecute.sandbox={sandbox}", *more)
        try:
            code = exit_code(*words, holds=(lock,))
        finally:
            _log(target, sandbox, command, before)
    rows = account_of(target)
    # No row shows a refused file if the student's group handed in another. All others are graded.
    if code == 1 and (any(row.refused for row in rows) or refused_strangers(target, ())):
        raise typer.Exit(1)
    if code and rows and all(row.status == "missing" for row in rows):
        raise LabError(f"there is no submission to grade; run `threeloops class collect {target.number:02d}` first")
    if code:
        raise failure(words)


def _log(lab: Lab, sandbox: str, command: str, before: dict[str, float]) -> None:
    """Append whose points changed to the class's log, also of a run that stopped halfway."""
    from threeloops_grader.grading.fingerprint import fingerprint
    from threeloops_grader.sandbox.pool import choose

    moves = log.moved(before, points_of(lab))
    with suppress(MachineFault):  # no sandbox: then nobody was graded
        prints = {"before": log.last_fingerprint(lab.slug), "after": fingerprint(lab, None, choose(sandbox))}
        log.append(command, lab.slug, fingerprint=prints, points=moves)


def _best_attempts(target: Lab, sandbox: str, jobs: int) -> list[str]:
    """Let the best of several attempts count, if the class has that rule."""
    if register.load().attempts != "best":
        return []
    from threeloops_grader.classroom.deadlines.best_attempt import place_best
    from threeloops_grader.classroom.deadlines.penalties import Penalties
    from threeloops_grader.classroom.enrolment import gradebook
    from threeloops_grader.sandbox.pool import choose

    with gradebook() as book:
        penalties = Penalties(book, target.root)
    return place_best(
        target,
        lambda student, time: penalties.lateness_at(student, target.slug, time).share,
        choose(sandbox),
        jobs,
    )


def check(lab: LabName) -> None:
    """Say who on the roster is graded, who is not and why, and who handed in nothing."""
    print_account(find_lab(lab), *scores_of(find_lab(lab)))
