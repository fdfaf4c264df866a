"""`threeloops grade`: grade a class, print a line per student as soon as it is graded, then write the exports."""

import errno
import html
import tempfile
import time
import unicodedata
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from threeloops.files import replace_text

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import manifest, test_title
from threeloops_grader.grading import records
from threeloops_grader.grading.grade import Options
from threeloops_grader.grading.records import WITHOUT_ISOLATION, ClassReport, Record
from threeloops_grader.sandbox.pool import choose
from threeloops_grader.worklist.grade_class import grade_class
from threeloops_grader.worklist.share import Share

__all__ = ["export", "print_result", "records_folder", "run"]

_MAX_STEM_BYTES = 200


def run(
    lab: Lab,
    folder: Path,
    *,
    jobs: int,
    only: str | None,
    sandbox: str,
    fresh: bool,
    console: Console,
    records: Path | None = None,
    share: Share | None = None,
    keep_executed: bool = False,
) -> ClassReport:
    """Grade `folder`, or a share of it. Prints a line for each student as soon as they are graded, then a table of the
    exercises. `records` is the folder of finished records; by default they lie beside the submissions.

    Raises:
        LabError, SandboxError, FileNotFoundError: before anybody was graded.
        MachineFault: the machine or the course is at fault. Finished records are kept.
    """
    trusted = manifest(lab)
    only = trusted.exercise(only).id if only is not None else None
    chosen = choose(sandbox)
    if chosen == "none":
        console.print(
            "[bold yellow]No sandbox:[/] submissions run as you, with your files and your network. "
            "Only for code that you trust."
        )
    kept_in = records_folder(folder, records, console)
    options = Options(chosen, jobs=jobs, only=only, records=kept_in, fresh=fresh, keep_executed=keep_executed)
    started = time.perf_counter()

    def line(record: Record, resumed: bool) -> None:
        mark = "[green]✓[/]" if record.score == record.max_score else "[yellow]·[/]"
        mark = "[red]✗[/]" if record.status == "failed" else mark
        points = f"{record.score:g}/{record.max_score:g}"
        how = "graded before" if resumed else f"{record.seconds:.1f} s"
        why = f"  {escape(record.notes[0])}" if record.status == "failed" and record.notes else ""
        console.print(f"{mark} {escape(record.student):<24} {points:>9}  [dim]{how}[/]{why}", highlight=False)

    report = grade_class(folder, lab, options, line, share=share)
    print_result(report, console, time.perf_counter() - started)
    return report


def print_result(report: ClassReport, console: Console, seconds: float) -> None:
    """Print how many students have full points, by exercise and in all."""
    table = Table("exercise", Column("full points", justify="right"), title=f"Lab {report.lab}", title_justify="left")
    for tests in zip(*(r.tests for r in report.records), strict=True):
        full = sum(test.score == test.max_score for test in tests)
        table.add_row(test_title(tests[0].name), f"{full} of {len(tests)}")
    if report.records:
        console.print(table)
    full = sum(r.score == r.max_score for r in report.records)
    failed = sum(r.status == "failed" for r in report.records)
    console.print(
        f"{len(report.records)} submissions in {seconds:.1f} s, {full} with full points, "
        f"{failed} not gradable; sandbox: {report.sandbox}",
        highlight=False,
    )
    if report.sandbox == "none":
        console.print(f"[bold yellow]{WITHOUT_ISOLATION[0].upper()}{WITHOUT_ISOLATION[1:]}[/]")


def records_folder(folder: Path, named: Path | None, console: Console) -> Path | None:
    """Return the folder of finished records: the one that was `named`, or one beside the submissions.

    Returns None, with a warning, if none was named and the submissions lie in a read-only folder. Raises OSError for
    anything else, such as a full disk, before anybody is graded.
    """
    place = folder / ".threeloops" if named is None else named
    if not folder.is_dir():
        return None  # `submissions.find` raises for it
    try:
        place.mkdir(exist_ok=True, parents=named is not None)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"a record")
    except OSError as error:
        if named is not None or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        console.print(
            f"[bold yellow]No records are kept:[/] {escape(str(place))} cannot be written ({error.strerror}). "
            "A run that is cut off starts again from the first student.",
            highlight=False,
        )
        return None
    return place


def export(
    report: ClassReport,
    lab: Lab,
    *,
    json: Path | None,
    html: Path | None,
    csv: Path | None,
    gradescope: Path | None,
    gradebook: str | None,
    submissions: Path | None = None,
) -> None:
    """Write the report in every form whose path is given, each file whole or not at all. The gradebook also gets the
    times of handing in from `submissions`, the folder that was graded."""
    if json is not None:
        _write(json, records.to_json(report.to_dict()))
    if html is not None:
        _write(html, _class_page(report))
    if csv is not None:
        _write(csv, records.to_csv(report))
    if gradescope is not None:
        for name, record in zip(_file_names([r.student for r in report.records]), report.records, strict=True):
            _write(gradescope / f"{name}.json", records.to_json(records.gradescope(record, report.sandbox)))
    if gradebook is not None:
        from threeloops_grader.classroom.gradebook import feed

        feed(report, lab, gradebook, submissions)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, text)


def _file_names(students: list[str]) -> list[str]:
    """Return a readable file name per student, without suffix. They differ even on disks that ignore case and
    composition."""
    names: dict[str, str] = {}
    for student in students:
        plain = "".join(c if unicodedata.category(c)[0] in "LMN" or c in "_-+@" else "_" for c in student)
        wanted = plain.encode()[:_MAX_STEM_BYTES].decode(errors="ignore")
        for name in (wanted, *(f"{wanted}-{n}" for n in range(2, len(students) + 2))):
            on_disk = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
            if on_disk not in names:
                names[on_disk] = name
                break
    return list(names.values())


def _class_page(report: ClassReport) -> str:
    """Return the class as one self-contained page: a table of the points, then each student's failures and their
    reasons."""
    from threeloops_grader.pages import pages
    from threeloops_grader.pages.pages import Cell

    tests = [test_title(t.name) for t in report.records[0].tests]
    rows = [
        [
            Cell(r.student, href=f"#{index}"),
            Cell(f"{r.score:g} / {r.max_score:g}", "number " + ("good" if r.score == r.max_score else "")),
            *[Cell(f"{t.score:g}", "number " + ("good" if t.score == t.max_score else "bad")) for t in r.tests],
            r.status,
            r.reflection,
        ]
        for index, r in enumerate(report.records)
    ]
    sections = [pages.table(["Student", "Points", *tests, "Status", "Reflection"], rows)]
    for index, r in enumerate(report.records):
        failed = [(test_title(t.name), Cell(t.output, "pre")) for t in r.tests if t.score < t.max_score]
        failed += [("note", Cell(note)) for note in r.notes]
        if failed:
            sections.append(f"<h2 id='{index}'>{html.escape(r.student)}</h2>{pages.table(['Exercise', 'Why'], failed)}")
    if report.sandbox == "none":
        warning = f"Without isolation: {WITHOUT_ISOLATION}."
        sections.insert(0, f"<p class='bad'><strong>{html.escape(warning)}</strong></p>")
    lead = f"{len(report.records)} submissions, graded through the wall; sandbox: {report.sandbox}."
    return pages.page(f"Lab {report.lab}", lead, *sections)
