"""Helpers of all steps: the lab, the scores and the account of a class, and nbgrader's own command."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from threeloops_grader.authoring.labs import Lab, LabError, course_root, find_lab
from threeloops_grader.classroom.exchange.folder import require_exchange
from threeloops_grader.classroom.register import settings as register
from threeloops_grader.machine.child_process import environment
from threeloops_grader.machine.faults import MachineFault

if TYPE_CHECKING:
    from threeloops_grader.classroom.results.scores import Row

__all__ = [
    "LabName", "account_of", "exit_code", "failure", "nbgrader", "points_of", "print_account", "roster_path",
    "scores_of", "whole_lab",
]  # fmt: skip

LabName = Annotated[str, typer.Argument(help="Number or name of the lab.")]

_OF_EXCHANGE = ("collect", "release_assignment", "release_feedback", "submit")


def whole_lab(lab: str) -> Lab:
    """Return a lab that is graded with its hidden tests. Raises LabError in a bundle or a wheel, which lack them."""
    from threeloops_grader.machine.installed import require_solutions

    target = find_lab(lab)
    require_solutions([target])
    return target


def roster_path() -> Path:
    return register.class_folder() / "roster.json"


def scores_of(target: Lab) -> tuple[list["Row"], list[str]]:
    """Return a row per student, and who handed in and is not on the roster. Raises LabError without a roster or before
    the lab is released."""
    from threeloops_grader.classroom.enrolment import gradebook
    from threeloops_grader.classroom.register.roster import saved_roster
    from threeloops_grader.classroom.results.scores import class_scores

    with gradebook() as book:
        return class_scores(book, target, saved_roster(roster_path()))


def points_of(target: Lab) -> dict[str, float]:
    """Return the points of everybody who has a row in the gradebook for this lab, before late penalties."""
    from threeloops_grader.classroom.enrolment import gradebook

    with gradebook() as book:
        return {row["student"]: float(row["score"]) for row in book.submission_dicts(target.slug)}


def print_account(target: Lab, rows: Sequence["Row"], strangers: Sequence[str]) -> None:
    from threeloops_grader.classroom.regrading.plan import unfinished
    from threeloops_grader.classroom.results.account import account

    print(account(target, rows, strangers))
    if cut_off := unfinished(target):
        print(cut_off)


def account_of(target: Lab) -> list["Row"]:
    """Print the account of a lab and return its rows, or say why there is none: the step before it stands."""
    try:
        rows, strangers = scores_of(target)
    except LabError as error:
        print(f"no account: {error}")
        return []
    print_account(target, rows, strangers)
    return rows


def nbgrader(*words: str) -> None:
    """Run nbgrader's command in the course. If it fails, raises MachineFault."""
    if exit_code(*words):
        raise failure(words)


def failure(words: Sequence[str]) -> MachineFault:
    return MachineFault(f"`nbgrader {' '.join(words)}` failed; what it said stands above")


def exit_code(*words: str, holds: Sequence[int] = ()) -> int:
    """Run nbgrader's command in the course, and return its exit code. It gets the descriptors of locks in `holds`."""
    root = course_root()
    if not (root / "nbgrader_config.py").is_file():
        raise LabError(f"{root} is not a course folder: it has no nbgrader_config.py; run this in a checkout or bundle")
    if words[0] in _OF_EXCHANGE:
        require_exchange(root)
    command = [sys.executable, "-m", "nbgrader", *words]
    sys.stdout.flush()
    return subprocess.run(command, cwd=root, env=environment(), pass_fds=holds).returncode
