"""`threeloops submit`, and `threeloops class collect` and `similar`: what students hand in."""

from collections.abc import Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from threeloops.files import replace_text

from threeloops_grader.authoring.labs import Lab, LabError, course_root, find_lab
from threeloops_grader.classroom.commands.steps import LabName, account_of, nbgrader, roster_path, whole_lab
from threeloops_grader.classroom.exchange.folder import exchange_of
from threeloops_grader.classroom.register import settings as register
from threeloops_grader.machine.terminal import encodable, plain
from threeloops_grader.submissions.folder import spelling

if TYPE_CHECKING:
    from threeloops_grader.classroom.handout.download_times import Times
    from threeloops_grader.classroom.register.groups import Groups
    from threeloops_grader.classroom.similar.comparison import Pair

__all__ = ["collect", "similar", "submit"]


def submit(
    lab: LabName,
    exchange: Annotated[bool, typer.Option("--exchange", help="Also hand it in at nbgrader's exchange.")] = False,
) -> None:
    """Make work/LAB.zip, the file to hand in at Gradescope, Canvas or Moodle."""
    from threeloops_grader.classroom.handout.submission import write_submission

    target = find_lab(lab)
    path, notes = write_submission(target)
    if exchange:
        nbgrader("submit", target.slug, f"--Exchange.assignment_dir={target.copies}")
    print(f"{path} is what you hand in.{' It is at the exchange as well.' if exchange else ''}")
    for note in notes:
        print(plain(f"note: {note}"))


def collect(
    lab: LabName,
    source: Annotated[
        Path | None, typer.Option("--from", help="A download of Canvas or Moodle, or a folder; else the exchange.")
    ] = None,
    handed_in: Annotated[
        str | None,
        typer.Option(help="When all of them were handed in, if the download does not say it."),
    ] = None,
    worksheet: Annotated[
        Path | None, typer.Option(help="Moodle's grading worksheet, which says when each was handed in.")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option(help="Time zone of all times without an offset; else the class's.")
    ] = None,
) -> None:
    """Fetch submissions into submitted/, newer ones in place of older ones."""
    target = find_lab(lab)
    if source is None:
        _require_inbound(target)
        nbgrader("collect", target.slug, "--update")
        account_of(target)
        return
    from threeloops_grader.classroom.exchange.uncollected import forget_collected, note_uncollected
    from threeloops_grader.classroom.handout.download_times import settled, worksheet_times
    from threeloops_grader.classroom.handout.downloads import read_download, store, time_noted
    from threeloops_grader.classroom.register.clock import read_time, require_zone
    from threeloops_grader.classroom.register.roster import addressees, saved_roster

    chosen = register.load()
    zone = require_zone(timezone).key if timezone else None if chosen.timezone == "UTC" else chosen.timezone
    when = read_time(handed_in, zone or "UTC", "--handed-in") if handed_in else None
    students = addressees(saved_roster(roster_path()))
    download = read_download(source, target, students)
    if worksheet is not None:
        of_all = worksheet_times(worksheet, students)
        download.times |= {student: time for student, time in of_all.items() if student in download.notebooks}
    times = settled({} if when else download.times, zone)
    root = course_root()
    note_uncollected(root, target.slug, download.unusable)
    changed = store(download, target, root / "submitted", when, chosen.attempts, times.utc)
    forget_collected(root, target.slug, download.notebooks)
    print(f"submissions found: {len(download.notebooks)}, new or changed: {changed}")
    for line in [*download.notes, *times.notes, *(f"not collected: {fault}" for fault in download.faults)]:
        print(plain(line))
    account_of(target)
    if when is None and target.slug in chosen.due:
        untimed = {name for name in download.notebooks if not time_noted(root / "submitted", name, target)}
        _print_untimed(untimed, download.late, times)
    if download.faults or (times.unread and target.slug in chosen.due):
        raise typer.Exit(1)


def _require_inbound(lab: Lab) -> None:
    """Check that students can have handed in at the exchange. Raises LabError if not."""
    inbound = exchange_of(course_root()) / "three_loops" / "inbound"
    if not inbound.is_dir():
        raise LabError(
            f"nobody can have handed in at the exchange, because there is no folder {inbound}; `threeloops class "
            f"release {lab.number:02d}` makes it. To collect a platform's download instead, name it with --from"
        )


def _print_untimed(untimed: Set[str], late: Set[str], times: "Times") -> None:
    """Say which submissions carry no time, so that no late penalty applies to them."""
    lines = list(times.unread)
    if marked := sorted(late & untimed):
        lines.append(
            f"marked late, but not how late: {', '.join(marked)}. No penalty applies to them until they have a time: "
            "collect them with --handed-in from a folder of their own"
        )
    if untimed:
        lines.append(
            f"submissions without a time: {len(untimed)}. No late penalty applies to them. Say when they were handed "
            "in with --handed-in, or for Moodle with --worksheet"
        )
    for line in lines:
        print(plain(line))


def similar(
    lab: LabName,
    submissions: Annotated[
        Path | None, typer.Option(help="Folder of submissions, <student>/LAB/LAB.ipynb; else submitted/.")
    ] = None,
    earlier: Annotated[
        list[Path] | None, typer.Option(help="Such a folder of an earlier term. May be repeated.")
    ] = None,
) -> None:
    """Compare answers across submissions, earlier terms, the solution and the library, and write a page to class/."""
    from threeloops_grader.classroom.deadlines.penalties import groups_path
    from threeloops_grader.classroom.register.groups import Groups, saved_groups
    from threeloops_grader.classroom.similar.comparison import compare
    from threeloops_grader.classroom.similar.page import similar_page

    target = whole_lab(lab)
    if submissions is None and not any((course_root() / "submitted").glob(f"*/{target.slug}")):
        raise LabError(
            f"there are no submissions of {target.slug} to compare; run `threeloops class collect {target.number:02d}` "
            "first, or name a folder with --submissions"
        )
    findings = compare(target, submissions or course_root() / "submitted", earlier or ())
    groups = Groups(saved_groups(groups_path()))
    pairs = [pair for pair in findings.pairs if not _in_one_group(pair, groups, target)]
    findings = replace(findings, pairs=tuple(pairs))
    path = register.class_folder() / f"{target.slug}_similar.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, encodable(similar_page(target, findings)))
    within = sum(pair.second.is_of_class for pair in findings.pairs)
    print(f"{findings.students} submissions: {within} pairs of answers are alike within the class, and")
    print(f"{len(findings.pairs) - within} answers are like a text from elsewhere. Nothing of this shows that anybody")
    print(f"copied. A person has to look at the answers: {path}")
    for fault in findings.faults:
        print(plain(f"not compared: {fault}"))


def _in_one_group(pair: "Pair", groups: "Groups", lab: Lab) -> bool:
    """Return whether two students share their submissions, so that equal answers are expected."""
    group, mates = groups.of(pair.first.owner, lab.slug)
    return bool(group) and pair.second.is_of_class and spelling(pair.second.owner) in map(spelling, mates)
