"""`threeloops class init` and `release`: the class, and what it gets."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from threeloops_grader.authoring.labs import course_root, find_lab
from threeloops_grader.classroom.commands.steps import LabName, nbgrader, roster_path, whole_lab
from threeloops_grader.classroom.exchange.folder import is_open_to_all, require_exchange
from threeloops_grader.classroom.register import log, pseudonyms
from threeloops_grader.classroom.register import settings as register

__all__ = ["gradescope", "init", "release"]


def init(
    roster: Annotated[Path, typer.Argument(help="CSV with a column student_id, or Canvas's, Gradescope's, Moodle's.")],
    due: Annotated[list[str] | None, typer.Option(help="A due date: '01=2030-01-31 23:59'. May be repeated.")] = None,
    timezone: Annotated[str, typer.Option(help="Time zone of due dates without an offset.")] = "UTC",
    late_percent: Annotated[float | None, typer.Option(help="Percent of the points lost per day begun.")] = None,
    late_most: Annotated[float | None, typer.Option(help="Most percent that lateness costs.")] = None,
    grace_minutes: Annotated[float | None, typer.Option(help="Minutes after the due date that cost nothing.")] = None,
    closes_days: Annotated[
        float | None, typer.Option(help="Days after which late work earns nothing; inf: never.")
    ] = None,
    reflection: Annotated[float | None, typer.Option(min=0, help="Manual points for the written reflection.")] = None,
    anonymous: Annotated[
        bool | None, typer.Option("--anonymous/--no-anonymous", help="Pseudonyms in formgrader, in place of names.")
    ] = None,
) -> None:
    """Enter roster, due dates and late policy. Run it again to change some of them; nobody is removed."""
    from threeloops_grader.classroom.enrolment import apply_due_dates, enrol, gradebook
    from threeloops_grader.classroom.register.roster import read_roster, save_roster

    dates = dict(register.parse_due(text, timezone) for text in due or [])
    students = read_roster(roster)
    before = register.load()
    late = before.late.changed(
        percent_per_day=late_percent, most_percent=late_most, grace_minutes=grace_minutes, closes_days=closes_days
    )
    points = before.reflection_points if reflection is None else reflection
    chosen = replace(before, late=late, due={**before.due, **dates}, reflection_points=points)
    if anonymous is not None:
        chosen = replace(chosen, anonymous=anonymous)
    if chosen.anonymous:
        pseudonyms.require_key()
    with gradebook() as book:
        strangers = enrol(book, students)
        graded = apply_due_dates(book, chosen)
    register.save(chosen)
    save_roster(roster_path(), students)
    due = ", ".join(f"{slug} {when}" for slug, when in sorted(chosen.due.items())) or "nothing"
    log.append("class init", note=f"{len(students)} students; {late} Due: {due}")
    print(f"{len(students)} students are in the gradebook. {late}")
    for slug, when in sorted(chosen.due.items()):
        print(f"{slug} is due {when}")
    if chosen.anonymous:
        print(f"Formgrader shows pseudonyms. Keep {pseudonyms.key_path()}: without it nobody can turn them back.")
    for note in students.notes:
        print(f"roster: {note}")
    for row in students.left_out:
        print(f"not in the gradebook: {row}")
    if strangers:
        print(f"In the gradebook and not on the roster: {', '.join(strangers)}. They stay there.")
    for slug in graded:
        print(f"{slug} has submissions: `threeloops class grade {slug[:2]} --again` applies the new date to them.")
    if is_open_to_all(course_root()):
        print(
            f"Every user of this machine can read {course_root()}: solutions, hidden tests, and soon submissions and "
            f"grades. `chmod go-rwx {shlex.quote(str(course_root()))}` closes it."
        )
    if students.left_out:
        raise typer.Exit(1)


def release(lab: LabName) -> None:
    """Enter a lab in the gradebook, put it to the exchange, and write the student bundle."""
    from threeloops_grader.classroom.enrolment import apply_due_dates, gradebook
    from threeloops_grader.classroom.handout.bundle import write_bundle
    from threeloops_grader.classroom.marking.rubric import require_reflection, set_reflection
    from threeloops_grader.release.files import restored_if_it_fails
    from threeloops_grader.release.release import release as generate

    target = whole_lab(lab)
    require_exchange(course_root())
    with gradebook() as book:
        require_reflection(book, target, register.load().reflection_points)
    with restored_if_it_fails(target.released.parent):
        generate([target])
        nbgrader("generate_assignment", target.slug, "--force")
    chosen = register.load().with_released(target.slug)
    with gradebook() as book:
        apply_due_dates(book, chosen)
        set_reflection(book, target, chosen.reflection_points)
    path = register.class_folder() / f"three_loops_{target.number:02d}.zip"
    others = [find_lab(slug) for slug in chosen.released if slug != target.slug]
    write_bundle(path, [*others, target])
    nbgrader("release_assignment", target.slug, "--force")
    register.save(chosen)
    print(f"{path} is the student bundle; {target.slug} is in the gradebook and at the exchange.")


def gradescope(lab: LabName) -> None:
    """Write the zip file that Gradescope takes as the autograder of a lab."""
    from threeloops_grader.classroom.handout.autograder import write_autograder

    target = whole_lab(lab)
    path = register.class_folder() / f"gradescope_{target.number:02d}.zip"
    write_autograder(path, target)
    print(f"{path} is the autograder. It holds the solutions: give it to Gradescope alone.")
