"""`threeloops class init`, `extend`, `groups` and `release`: the class, and what it gets."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from threeloops_grader.authoring.labs import LabError, all_labs, course_root, find_lab
from threeloops_grader.classroom.commands.steps import LabName, nbgrader, roster_path, whole_lab
from threeloops_grader.classroom.exchange.folder import is_open_to_all, require_exchange
from threeloops_grader.classroom.register import log, pseudonyms
from threeloops_grader.classroom.register import settings as register
from threeloops_grader.classroom.register.clock import require_zone, shown
from threeloops_grader.machine.terminal import plain

if TYPE_CHECKING:
    from threeloops_grader.classroom.register.roster import Student

__all__ = ["extend", "gradescope", "groups", "init", "release"]


def init(
    roster: Annotated[
        Path | None, typer.Argument(help="CSV with a column student_id, or Canvas's, Gradescope's, Moodle's.")
    ] = None,
    from_lms: Annotated[
        bool, typer.Option("--from-lms", help="Fetch the roster from the LMS (`class lms init`).")
    ] = False,
    due: Annotated[list[str] | None, typer.Option(help="A due date: '01=2030-01-31 23:59'. May be repeated.")] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Time zone of times without an offset, such as Europe/Berlin; at first UTC.")
    ] = None,
    late_percent: Annotated[float | None, typer.Option(help="Percent of the points lost per day begun.")] = None,
    late_most: Annotated[float | None, typer.Option(help="Most percent that lateness costs.")] = None,
    grace_minutes: Annotated[float | None, typer.Option(help="Minutes after the due date that cost nothing.")] = None,
    closes_days: Annotated[
        float | None, typer.Option(help="Days after which late work earns nothing; inf: never.")
    ] = None,
    slip_days: Annotated[int | None, typer.Option(help="Late days per student and term that cost nothing.")] = None,
    slip_most: Annotated[int | None, typer.Option(help="Most slip days for one lab; -1: as many as there are.")] = None,
    opened: Annotated[
        list[str] | None,
        typer.Option(help="When students got a lab, as for --due; else when it was released. For extra time."),
    ] = None,
    attempts: Annotated[
        str | None, typer.Option(help="The attempt that counts: last, best, or 'first N', the last of the first N.")
    ] = None,
    reflection: Annotated[float | None, typer.Option(min=0, help="Manual points for the written reflection.")] = None,
    anonymous: Annotated[
        bool | None, typer.Option("--anonymous/--no-anonymous", help="Pseudonyms in formgrader, in place of names.")
    ] = None,
) -> None:
    """Enter roster, due dates and late policy. Run it again to change some of them; nobody is removed."""
    from threeloops_grader.classroom.commands.lms import lms_roster
    from threeloops_grader.classroom.deadlines.penalties import Penalties
    from threeloops_grader.classroom.enrolment import apply_due_dates, dates_in_gradebook, enrol, gradebook
    from threeloops_grader.classroom.exchange.attempts import read_rule
    from threeloops_grader.classroom.register.roster import (
        current,
        read_roster,
        save_roster,
        saved_roster,
        with_dropped,
    )

    if (roster is None) != from_lms:
        raise LabError("expected one roster: a file (`threeloops class init ROSTER.csv`), or --from-lms")
    before = register.load()
    zone = require_zone(timezone or before.timezone).key
    dates = dict(register.parse_due(text, zone) for text in due or [])
    openings = dict(register.parse_due(text, zone, opens=True) for text in opened or [])
    students = lms_roster() if roster is None else read_roster(roster)
    enrolled = saved_roster(roster_path()) if roster_path().is_file() else []
    everybody = with_dropped(students, enrolled)
    late = before.late.changed(
        percent_per_day=late_percent,
        most_percent=late_most,
        grace_minutes=grace_minutes,
        closes_days=closes_days,
        slip_days=slip_days,
        slip_most=slip_most,
    )
    rule = read_rule(attempts or before.attempts)
    points = before.reflection_points if reflection is None else reflection
    with gradebook() as book:
        changed_elsewhere = dates_in_gradebook(book, before)
        chosen = replace(
            before,
            late=late,
            due={**before.due, **changed_elsewhere, **dates},
            opened={**before.opened, **openings},
            reflection_points=points,
            timezone=zone,
            attempts=rule,
            anonymous=before.anonymous if anonymous is None else anonymous,
        )
        if chosen.anonymous:
            pseudonyms.require_key()
        strangers = enrol(book, everybody)
        apply_due_dates(book, chosen)
        placed = _place_attempts(rule) if rule not in ("best", before.attempts) else []
        register.save(chosen)
        save_roster(roster_path(), everybody)
        penalties = Penalties(book, course_root()).refresh()
    _log_init(chosen, everybody, enrolled)
    print(f"{len(current(everybody))} students are in the gradebook. {late}")
    print(f"Of several attempts the {'last of the ' * rule.startswith('first')}{rule} counts.")
    for line in placed:
        print(plain(f"{line}; grade it"))
    for slug, when in sorted(chosen.due.items()):
        why = " (changed in formgrader)" if slug in changed_elsewhere and slug not in dates else ""
        print(f"{slug} is due {shown(datetime.fromisoformat(when), zone)}{why}")
    if chosen.anonymous:
        print(f"Formgrader shows pseudonyms. Keep {pseudonyms.key_path()}: without it nobody can turn them back.")
    for note in students.notes:
        print(f"roster: {note}")
    for student in (student for student in everybody if student.dropped):
        print(f"dropped: {student.id}: {student.dropped}; work and points stay, and count in no mean")
    for row in students.left_out:
        print(f"not in the gradebook: {row}")
    if strangers:
        print(f"In the gradebook and not on the roster: {', '.join(strangers)}. They stay there.")
    if penalties:
        print(f"late penalties changed: {penalties}")
    if is_open_to_all(course_root()):
        print(
            f"Every user of this machine can read {course_root()}: solutions, hidden tests, and soon submissions and "
            f"grades. `chmod go-rwx {shlex.quote(str(course_root()))}` closes it."
        )
    if students.left_out:
        raise typer.Exit(1)


def _place_attempts(rule: str) -> list[str]:
    """Let the attempts count that a rule names, in every lab with several, after there was another rule."""
    from threeloops_grader.classroom.deadlines.best_attempt import place_last
    from threeloops_grader.classroom.exchange.attempts import attempts_folder

    labs = [lab for lab in all_labs() if attempts_folder(course_root(), lab.slug).is_dir()]
    return [line for lab in labs for line in place_last(lab, rule)]


def _log_init(chosen: register.Settings, students: Sequence["Student"], before: Sequence["Student"]) -> None:
    from threeloops_grader.classroom.register.roster import current

    due = ", ".join(f"{slug} {when}" for slug, when in sorted(chosen.due.items())) or "nothing"
    reasons = {student.id: student.dropped for student in before}
    moved = {
        student.id: f"has left the class ({student.dropped})" if student.dropped else "is back in the class"
        for student in students
        if bool(reasons.get(student.id)) != bool(student.dropped)
    }
    log.append("class init", note=f"{len(current(students))} students; {chosen.late} Due: {due}", about=moved)


def extend(
    table: Annotated[Path, typer.Argument(help="CSV with the columns student, lab, and due, hours or factor.")],
) -> None:
    """Give students more time. Rows are added to earlier ones, or replace those for the same student and lab."""
    from threeloops_grader.classroom.deadlines.penalties import Penalties, extensions_path
    from threeloops_grader.classroom.enrolment import dates_in_gradebook, gradebook
    from threeloops_grader.classroom.register.extensions import (
        EVERY_LAB,
        merged,
        read_extensions,
        save_extensions,
        saved_extensions,
    )
    from threeloops_grader.classroom.register.roster import saved_roster

    chosen = register.load()
    path = extensions_path()
    with gradebook() as book:
        chosen = replace(chosen, due={**chosen.due, **dates_in_gradebook(book, chosen)})
        rows = read_extensions(table, saved_roster(roster_path()), chosen)
        save_extensions(path, merged(saved_extensions(path), rows))
        penalties = Penalties(book, course_root())
        changed = penalties.refresh()
    about: dict[str, str] = {}
    for row in rows:
        lab = "every lab" if row.lab == EVERY_LAB else row.lab
        about[row.student] = "; ".join(part for part in (about.get(row.student), f"{row} for {lab}") if part)
    log.append("class extend", about=about)
    for row in rows:
        if row.lab == EVERY_LAB:
            print(f"{row.student}: {row} for every lab, also those that get a due date later")
        else:
            time, _ = penalties.terms.due_for(row.student, row.lab)
            when = f"due {shown(time, chosen.timezone)}" if time else "without a due date in the gradebook"
            print(f"{row.student}: {row.lab} is {when}{'' if row.due else f' ({row})'}")
    print(f"late penalties changed: {changed}")


def groups(
    table: Annotated[Path, typer.Argument(help="CSV with the columns group and student, and perhaps lab.")],
) -> None:
    """Say which students share their submissions. The table replaces the one before it."""
    from threeloops_grader.classroom.deadlines.penalties import Penalties, groups_path
    from threeloops_grader.classroom.enrolment import gradebook
    from threeloops_grader.classroom.register.groups import places, read_groups, save_groups, saved_groups
    from threeloops_grader.classroom.register.roster import saved_roster

    members = read_groups(table, saved_roster(roster_path()))
    before = places(saved_groups(groups_path()))
    save_groups(groups_path(), members)
    with gradebook() as book:
        Penalties(book, course_root()).refresh()
    now = places(members)
    moved = {
        name: now.get(name, "in no group") for name in sorted({*before, *now}) if before.get(name) != now.get(name)
    }
    log.append("class groups", about=moved)
    names = sorted({(member.lab, member.group) for member in members})
    print(f"groups: {len(names)}, students in them: {len({member.student for member in members})}")
    for lab, name in names:
        mates = [member.student for member in members if (member.lab, member.group) == (lab, name)]
        if len(mates) == 1:
            print(f"group {name} has only {mates[0]}")


def release(lab: LabName) -> None:
    """Enter a lab in the gradebook, put it to the exchange, and write the student bundle."""
    from threeloops_grader.classroom.enrolment import apply_due_dates, dates_in_gradebook, gradebook
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
    chosen = register.load().with_released(target.slug, datetime.now(UTC))
    with gradebook() as book:
        chosen = replace(chosen, due={**chosen.due, **dates_in_gradebook(book, chosen)})
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
