"""`threeloops class regrade`, `log` and `who`: points that change later, who changed them, and whose a pseudonym is."""

from typing import Annotated, Literal

import typer

from threeloops_grader.authoring.labs import LabError, all_labs, find_lab
from threeloops_grader.classroom.commands.steps import LabName, account_of, roster_path, whole_lab
from threeloops_grader.classroom.register import settings
from threeloops_grader.classroom.register.roster import saved_roster
from threeloops_grader.machine.terminal import plain
from threeloops_grader.submissions.folder import spelling

__all__ = ["log", "regrade", "who"]


def regrade(
    lab: LabName,
    exercise: Annotated[str, typer.Argument(help="The exercise whose test was repaired.")],
    keep_higher: Annotated[
        bool, typer.Option("--keep-higher", help="Nobody loses points: whoever would keeps the earlier result.")
    ] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", min=0, max=64, help="Submissions executed at a time; 0: one for every core.")
    ] = 0,
    sandbox: Annotated[
        Literal["auto", "bwrap", "none"], typer.Option(help="none: run submissions without isolation.")
    ] = "auto",
) -> None:
    """Grade one exercise of all graded submissions again, after its test was repaired, and change nothing else.

    Exits 1 if a submission is left out. A run that was cut off is completed by the next one.
    """
    from threeloops_grader.classroom.ahead import default_jobs
    from threeloops_grader.classroom.regrading.regrade import regrade as regrade_class
    from threeloops_grader.sandbox.pool import choose

    target = whole_lab(lab)
    done = regrade_class(target, exercise, choose(sandbox), jobs or default_jobs(target), keep_higher)
    changes = done.plan.changes
    moves = {student: change for student, change in changes.items() if change.old != change.new}
    earlier = done.plan.kept
    regraded = len(changes) + len(earlier)
    print(f"{target.slug} {done.plan.exercise}: {regraded} submissions regraded, points changed: {len(moves)}")
    for student, change in moves.items():
        print(plain(f"  {student}: {change.old:g} -> {change.new:g}{' (fewer)' if change.new < change.old else ''}"))
    for student, (old, new) in earlier.items():
        print(plain(f"  {student} keeps {old:g} (--keep-higher; the repaired test gives {new:g})"))
    for line in done.manual:
        print(plain(f"manual points stay and hide the new ones, {line}"))
    for line in done.left_out:
        print(plain(f"not regraded: {line}"))
    if done.others:
        number = f"{target.number:02d}"
        print(f"The lab changed elsewhere, too: {', '.join(done.others)}. These cells were left alone;")
        print(f"`threeloops class grade {number} --again` grades the whole lab.")
    if settings.load().attempts == "best":
        print(f"Another attempt may be the best one now: `threeloops class grade {target.number:02d}` looks.")
    account_of(target)
    if done.left_out:
        raise typer.Exit(1)


def log(
    lab: Annotated[str, typer.Argument(help="A lab's number or name, or a student's id; all labs if none.")] = "",
    student: Annotated[str, typer.Argument(help="Only what concerns this student.")] = "",
) -> None:
    """Say who changed which points, and when: the lines of class/log.jsonl, oldest first.

    `class log 01 ada` shows a student's lines for a lab, `class log ada` those for all labs.
    """
    from threeloops_grader.classroom.register.log import history, lines, log_path, students_in

    entries, faults = lines()
    ids = {spelling(name).casefold(): name for name in students_in(entries)}
    if roster_path().is_file():
        ids |= {spelling(person.id).casefold(): person.id for person in saved_roster(roster_path())}
    student = ids.get(spelling(student).casefold(), student)
    slug = ""
    try:
        slug = find_lab(lab).slug if lab else ""
    except LabError as error:
        if student or spelling(lab).casefold() not in ids:
            hint = "" if student else f" No student on the roster or in {log_path()} is called {lab!r} either."
            raise LabError(f"{error}{hint}") from None
        student = ids[spelling(lab).casefold()]
    shown = list(history(entries, slug, student))
    for line in shown:
        print(plain(line))
    if not shown:
        about = " about " + ", ".join(part for part in (slug, student) if part) if lab or student else ""
        print(plain(f"{log_path()} has no line{about}"))
    for fault in faults:
        print(fault)
    if faults:
        raise typer.Exit(1)


def who(
    pseudonym: Annotated[str, typer.Argument(help="A pseudonym that formgrader shows.")],
    lab: Annotated[str, typer.Argument(help="Number or name of the lab; all labs if none is named.")] = "",
) -> None:
    """Say whose a pseudonym of anonymous marking is. The class's log says that you asked."""
    from threeloops_grader.classroom.enrolment import gradebook
    from threeloops_grader.classroom.register import log as class_log
    from threeloops_grader.classroom.register.pseudonyms import key_path, require_key, whose

    if not key_path().exists():
        raise LabError(
            f"no pseudonyms were given: there is no {key_path()}; `class init ROSTER.csv --anonymous` does it"
        )
    names = {student.id: student.name for student in saved_roster(roster_path())}
    with gradebook() as book:
        names = {**{student.id: "" for student in book.students}, **names}
    labs = [find_lab(lab)] if lab else all_labs()
    owners = whose(require_key(), pseudonym, [target.slug for target in labs], names)
    if not owners:
        where = labs[0].slug if lab else "any lab"
        raise LabError(
            f"{pseudonym!r} is nobody's pseudonym in {where}, for the {len(names)} students in the gradebook"
        )
    for slug, student in owners:
        class_log.append("class who", slug, note=pseudonym, about=student)
        print(plain(f"{slug} {pseudonym}: {student}{f' ({names[student]})' if names[student] else ''}"))
