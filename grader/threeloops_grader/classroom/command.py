"""`threeloops class …` and `threeloops submit`: a term in six steps, each a thin layer over nbgrader's own command."""

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from threeloops.files import replace_text

from threeloops_grader.authoring.labs import Lab, LabError, course_root, find_lab
from threeloops_grader.classroom.exchange.folder import is_open_to_all, require_exchange
from threeloops_grader.classroom.register import settings as register
from threeloops_grader.machine.child_process import environment
from threeloops_grader.machine.faults import MachineFault

if TYPE_CHECKING:
    from threeloops_grader.classroom.results.scores import Row

__all__ = ["add_commands"]

_LabName = Annotated[str, typer.Argument(help="Number or name of the lab.")]


def _submit(
    lab: _LabName,
    exchange: Annotated[bool, typer.Option("--exchange", help="Also hand it in at nbgrader's exchange.")] = False,
) -> None:
    """Make work/LAB.zip, the file to hand in at Gradescope, Canvas or Moodle."""
    from threeloops_grader.classroom.handout.submission import write_submission

    target = find_lab(lab)
    path = write_submission(target)
    if exchange:
        _nbgrader("submit", target.slug, f"--Exchange.assignment_dir={target.copies}")
    print(f"{path} is what you hand in.{' It is at the exchange as well.' if exchange else ''}")


def _init(
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
    with gradebook() as book:
        strangers = enrol(book, students)
        graded = apply_due_dates(book, chosen)
    register.save(chosen)
    save_roster(_roster(), students)
    print(f"{len(students)} students are in the gradebook. {late}")
    for slug, when in sorted(chosen.due.items()):
        print(f"{slug} is due {when}")
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


def _release(lab: _LabName) -> None:
    """Enter a lab in the gradebook, put it to the exchange, and write the student bundle."""
    from threeloops_grader.classroom.enrolment import apply_due_dates, gradebook, set_reflection_points
    from threeloops_grader.classroom.handout.bundle import write_bundle
    from threeloops_grader.release.files import restored_if_it_fails
    from threeloops_grader.release.release import release as generate

    target = _whole(lab)
    require_exchange(course_root())
    with restored_if_it_fails(target.released.parent):
        generate([target])
        _nbgrader("generate_assignment", target.slug, "--force")
    chosen = register.load().with_released(target.slug)
    with gradebook() as book:
        apply_due_dates(book, chosen)
        set_reflection_points(book, target.slug, chosen.reflection_points)
    path = register.class_folder() / f"three_loops_{target.number:02d}.zip"
    others = [find_lab(slug) for slug in chosen.released if slug != target.slug]
    write_bundle(path, [*others, target])
    _nbgrader("release_assignment", target.slug, "--force")
    register.save(chosen)
    print(f"{path} is the student bundle; {target.slug} is in the gradebook and at the exchange.")


def _collect(
    lab: _LabName,
    source: Annotated[
        Path | None, typer.Option("--from", help="A download of Canvas or Moodle, or a folder; else the exchange.")
    ] = None,
    handed_in: Annotated[
        datetime | None, typer.Option(help="When all of them were handed in (UTC): downloads do not say it.")
    ] = None,
) -> None:
    """Fetch submissions into submitted/, newer ones in place of older ones."""
    target = find_lab(lab)
    if source is None:
        _nbgrader("collect", target.slug, "--update")
        _account_if_there_is_one(target)
        return
    from threeloops_grader.classroom.handout.downloads import read_download, store
    from threeloops_grader.classroom.register.roster import saved_roster

    download = read_download(source, target, saved_roster(_roster()))
    when = handed_in.replace(tzinfo=UTC) if handed_in else None
    changed = store(download, target, course_root() / "submitted", when)
    print(f"submissions found: {len(download.notebooks)}, new or changed: {changed}")
    for fault in download.faults:
        print(f"not collected: {fault.encode('ascii', 'backslashreplace').decode()}")
    _account_if_there_is_one(target)
    if when is None and target.slug in register.load().due:
        print("Without --handed-in these carry no time, and no late penalty applies to them.")
    if download.faults:
        raise typer.Exit(1)


def _grade(
    lab: _LabName,
    again: Annotated[bool, typer.Option("--again", help="Grade again what is graded already.")] = False,
    sandbox: Annotated[str, typer.Option(help="auto, bwrap, or none: run submissions without isolation.")] = "auto",
) -> None:
    """Grade through the wall (nbgrader autograde), late penalties included. If a submission is refused, exit with 1."""
    target = _whole(lab)
    more = ["--force"] if again else []
    words = ("autograde", target.slug, f"--WalledExecute.sandbox={sandbox}", *more)
    code = _exit_code(*words)
    rows = _account_if_there_is_one(target)
    if code == 1 and any(row.refused for row in rows):  # all others are graded
        raise typer.Exit(1)
    if code:
        raise _failure(words)


def _check(lab: _LabName) -> None:
    """Say who on the roster is graded, who is not and why, and who handed in nothing."""
    _account(find_lab(lab), *_scores(find_lab(lab)))


def _feedback(lab: _LabName) -> None:
    """Write the feedback pages to feedback/, and hand them back to those who used the exchange."""
    from threeloops_grader.classroom.autograde import SECRET
    from threeloops_grader.classroom.results.account import write_refusals
    from threeloops_grader.submissions.folder import TIMESTAMP

    target = find_lab(lab)
    _nbgrader("generate_feedback", target.slug, "--force")
    folder = course_root() / "feedback"
    pages = sorted(folder.glob(f"*/{target.slug}/{target.slug}.html"))
    sealed = [p for p in pages if (p.parent / SECRET).is_file() and (p.parent / TIMESTAMP).is_file()]
    others = [page.parents[1].name for page in pages if page not in sealed]
    if sealed:
        _nbgrader("release_feedback", target.slug, f"--CourseDirectory.student_id_exclude={','.join(others)}")
    refused = write_refusals(target, _account_if_there_is_one(target))
    print(f"{folder} holds {len(pages)} pages; {len(sealed)} were handed back through the exchange.")
    if refused:
        print(f"{len(refused)} more pages say why a submission was refused; hand those back yourself.")


def _export(
    lab: _LabName,
    exercises: Annotated[bool, typer.Option(help="A column for each exercise beside the total.")] = True,
) -> None:
    """Write the scores for Gradescope, Canvas and Moodle, and the class report, to class/."""
    from threeloops_grader.classroom.results.report import class_csv, class_page
    from threeloops_grader.classroom.results.tables import FORMATS
    from threeloops_grader.classroom.results.wrong_answers import common_mistakes, signatures
    from threeloops_grader.pages.spreadsheet import to_csv
    from threeloops_grader.sandbox import bwrap

    target = find_lab(lab)
    folder = register.class_folder()
    rows, strangers = _scores(target)
    texts = {f"{target.slug}_{name}.csv": to_csv(make(target, rows, exercises)) for name, make in FORMATS.items()}
    wrong = {}
    if any(row.messages for row in rows):
        cache = folder / f"wrong_answers_{target.number:02d}.json"
        wrong = signatures(target, "none" if bwrap.why_not() else "bwrap", cache)  # our own answers
    mistakes = common_mistakes(target, rows, wrong)
    texts[f"{target.slug}_report.html"] = class_page(target, rows, mistakes)
    texts[f"{target.slug}_report.csv"] = class_csv(target, rows, mistakes)
    for name, text in texts.items():
        replace_text(folder / name, text.encode("utf-8", "backslashreplace").decode())
        print(folder / name)
    _account(target, rows, strangers)


def _similar(
    lab: _LabName,
    submissions: Annotated[
        Path | None, typer.Option(help="Folder of submissions, <student>/LAB/LAB.ipynb; else submitted/.")
    ] = None,
    earlier: Annotated[
        list[Path] | None, typer.Option(help="Such a folder of an earlier term. May be repeated.")
    ] = None,
) -> None:
    """Compare answers across submissions, earlier terms, the solution and the library, and write a page to class/."""
    from threeloops_grader.classroom.similar.comparison import compare
    from threeloops_grader.classroom.similar.page import similar_page

    target = _whole(lab)
    findings = compare(target, submissions or course_root() / "submitted", earlier or ())
    path = register.class_folder() / f"{target.slug}_similar.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, similar_page(target, findings).encode("utf-8", "backslashreplace").decode())
    within = sum(pair.second.is_of_class for pair in findings.pairs)
    print(f"{findings.students} submissions: {within} pairs of answers are alike within the class, and")
    print(f"{len(findings.pairs) - within} answers are like a text from elsewhere. Nothing of this shows that anybody")
    print(f"copied. A person has to look at the answers: {path}")
    for fault in findings.faults:
        print(f"not compared: {fault.encode('ascii', 'backslashreplace').decode()}")


def _gradescope(lab: _LabName) -> None:
    """Write the zip file that Gradescope takes as the autograder of a lab."""
    from threeloops_grader.classroom.handout.autograder import write_autograder

    target = _whole(lab)
    path = register.class_folder() / f"gradescope_{target.number:02d}.zip"
    write_autograder(path, target)
    print(f"{path} is the autograder. It holds the solutions: give it to Gradescope alone.")


def add_commands(app: typer.Typer, command: Callable[..., object]) -> None:
    """Add `submit` and the group `class` to the command line; `command(function, app)` registers one."""
    command(_submit, app)
    steps = typer.Typer(
        no_args_is_help=True, help="Teach: roster, release, collect, grade, check, feedback, export, similar answers."
    )
    for step in (_init, _release, _collect, _grade, _check, _feedback, _export, _similar, _gradescope):
        command(step, steps)
    app.add_typer(steps, name="class")


def _whole(lab: str) -> Lab:
    """Return a lab that is graded with its hidden tests. Raises LabError in a bundle or a wheel, which lack them."""
    from threeloops_grader.machine.installed import require_solutions

    target = find_lab(lab)
    require_solutions([target])
    return target


def _roster() -> Path:
    return register.class_folder() / "roster.json"


_OF_EXCHANGE = ("collect", "release_assignment", "release_feedback", "submit")


def _scores(target: Lab) -> tuple[list["Row"], list[str]]:
    """Return a row per student, and who handed in and is not on the roster. Raises LabError without a roster or before
    the lab is released."""
    from threeloops_grader.classroom.enrolment import gradebook
    from threeloops_grader.classroom.register.roster import saved_roster
    from threeloops_grader.classroom.results.scores import class_scores

    with gradebook() as book:
        return class_scores(book, target, saved_roster(_roster()))


def _account(target: Lab, rows: Sequence["Row"], strangers: Sequence[str]) -> None:
    from threeloops_grader.classroom.results.account import account

    print(account(target, rows, strangers))


def _account_if_there_is_one(target: Lab) -> list["Row"]:
    """Print the account of a lab and return its rows, or say why there is none: the step before it stands."""
    try:
        rows, strangers = _scores(target)
    except LabError as error:
        print(f"no account: {error}")
        return []
    _account(target, rows, strangers)
    return rows


def _nbgrader(*words: str) -> None:
    """Run nbgrader's command in the course. If it fails, raises MachineFault."""
    if _exit_code(*words):
        raise _failure(words)


def _failure(words: Sequence[str]) -> MachineFault:
    return MachineFault(f"`nbgrader {' '.join(words)}` failed; what it said stands above")


def _exit_code(*words: str) -> int:
    root = course_root()
    if not (root / "nbgrader_config.py").is_file():
        raise LabError(f"{root} is not a course folder: it has no nbgrader_config.py; run this in a checkout or bundle")
    if words[0] in _OF_EXCHANGE:
        require_exchange(root)
    command = [sys.executable, "-m", "nbgrader", *words]
    sys.stdout.flush()
    return subprocess.run(command, cwd=root, env=environment()).returncode
