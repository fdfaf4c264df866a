"""`threeloops class lms init` and `push`: the roster and the grades of an LMS without files."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from threeloops_grader.authoring.labs import find_lab
from threeloops_grader.classroom.commands.steps import LabName, print_account, roster_path, scores_of
from threeloops_grader.machine.terminal import plain

if TYPE_CHECKING:
    from threeloops_grader.classroom.lms.push import Planned
    from threeloops_grader.classroom.register.roster import Roster

__all__ = ["init", "lms_roster", "push"]


def init(
    client_id: Annotated[str | None, typer.Option(help="The client id that the LMS gave the tool.")] = None,
    token_url: Annotated[str | None, typer.Option(help="Where the LMS gives access tokens.")] = None,
    lineitems_url: Annotated[str | None, typer.Option(help="The course's line items: its columns of grades.")] = None,
    memberships_url: Annotated[str | None, typer.Option(help="The course's names and roles.")] = None,
    audience: Annotated[
        str | None, typer.Option(help="Only if the LMS asks for another one than the token URL.")
    ] = None,
) -> None:
    """Make the tool's key, print what the LMS needs, enter what the LMS gives, and try it."""
    from threeloops_grader.classroom.lms import platform as lms

    given = {
        "client_id": client_id, "token_url": token_url, "lineitems_url": lineitems_url,
        "memberships_url": memberships_url, "audience": audience,
    }  # fmt: skip
    chosen = replace(lms.load(), **{name: value.strip() for name, value in given.items() if value is not None})
    lms.make_key()
    registration = lms.key_of()
    lms.save(chosen)
    print("For the administrator of the LMS (docs/teaching/lms.md says where each goes in Canvas and Moodle):\n")
    print(f"public key (JWK): {lms.json_of(registration)}\n")
    print(f"the same key (PEM):\n{registration.get_tool_public_key()}")
    print("scopes:", *(f"  {scope}" for scope in (*lms.AGS_SCOPES, lms.NRPS_SCOPE)), sep="\n")
    print("addresses for login, launch and redirection: not used; a form that wants one takes https://localhost/\n")
    print("From the LMS:")
    for name in given:
        value = getattr(chosen, name) or ("(the token URL)" if name == "audience" else "(missing)")
        print(f"  --{name.replace('_', '-')} {value}")
    if chosen.missing:
        print(f"\nNext: `threeloops class lms init {' '.join(f'{option} …' for option in chosen.missing)}`")
        return
    columns, members = lms.connect().tried()
    print(f"\nThe LMS answers: {members} members, {columns} columns of this tool.")
    print("Next: `threeloops class init --from-lms`")


def lms_roster() -> "Roster":
    """Return the learners at the LMS; those on the roster keep their ids."""
    from threeloops_grader.classroom.lms.members import fetch_roster
    from threeloops_grader.classroom.lms.platform import connect
    from threeloops_grader.classroom.register.roster import saved_roster

    return fetch_roster(connect(), saved_roster(roster_path()) if roster_path().exists() else ())


def push(
    lab: LabName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be pushed.")] = False,
    missing_as_zero: Annotated[
        bool, typer.Option("--missing-as-zero", help="Push 0 for students who handed in nothing.")
    ] = False,
    comments: Annotated[bool, typer.Option("--comments", help="Send the points per exercise as a comment.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Push scores that the LMS accepted before, too.")] = False,
) -> None:
    """Push the scores that `class export` writes to the LMS. If one is not accepted, exit with 1: run it again."""
    from threeloops_grader.classroom.lms.platform import connect
    from threeloops_grader.classroom.lms.push import opened_journal, planned_scores
    from threeloops_grader.classroom.lms.push import push as push_scores

    target = find_lab(lab)
    rows, strangers = scores_of(target)
    options = {"missing_as_zero": missing_as_zero, "comments": comments, "again": again}
    with opened_journal() as journal:
        if dry_run:
            plans = planned_scores(target, rows, journal, journal.columns.get(target.slug, ""), **options)
            _print_table(plans)
            return
        plans, result = push_scores(target, rows, connect(), journal, **options)
    same = [plan for plan in plans if plan.step == "same"]
    unknown = [plan for plan in plans if plan.step == "none" and plan.score is not None]
    silent = [plan for plan in plans if plan.step == "none" and plan.score is None]
    print(f"{target.slug} at the LMS: {len(result.accepted)} scores pushed, {len(same)} were there already", end="")
    print(f", {len(result.failed) + len(unknown)} not pushed, {len(silent)} students without a score")
    if result.note:
        print(result.note)
    if result.accepted:
        _print(f"pushed: {', '.join(result.accepted)}")
    for student, why in (*result.failed, *((plan.row.student.id, plan.why) for plan in unknown)):
        _print(f"not pushed: {student}: {why}")
    if unknown:
        print("`threeloops class init --from-lms` finds the users of the LMS. Then run this again.")
    elif result.failed:
        print("The same command goes on from there.")
    _print_silent(silent)
    print_account(target, rows, strangers)
    if result.failed or unknown:
        raise typer.Exit(1)


def _print_silent(plans: Sequence["Planned"]) -> None:
    missing = [plan.row.student.id for plan in plans if plan.row.status == "missing"]
    if missing:
        _print(f"missing, so without a score at the LMS (--missing-as-zero pushes 0): {', '.join(missing)}")


def _print_table(plans: Sequence["Planned"]) -> None:
    steps = {"push": "would be pushed", "same": "is there already"}
    _print(f"{'student':24} {'user of the LMS':24} {'score':>8} {'of':>6}  what happens")
    for plan in plans:
        student = plan.row.student
        score = "" if plan.score is None else f"{plan.score:g}"
        what = steps.get(plan.step, f"nothing: {plan.why}") + (f" ({plan.comment})" if plan.comment else "")
        _print(f"{student.id:24} {student.lti_id:24} {score:>8} {plan.row.max_score:>6g}  {what}")


def _print(text: str) -> None:
    print(plain(text))
