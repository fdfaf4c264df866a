"""What `threeloops grade` does: grade a class with a live line for each student, then write what was asked for."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grader import records
from grader.files import replace_text
from grader.grade import Options, grade_class
from grader.labs import Lab
from grader.manifest import manifest
from grader.records import ClassReport, Record
from grader.sandbox.pool import choose


def run(
    lab: Lab, folder: Path, *, jobs: int, only: str | None, sandbox: str, fresh: bool, console: Console
) -> ClassReport:
    """Grade `folder` and print a line for each student as it is done, then a table of the exercises.

    Raises:
        LabError, SandboxError, FileNotFoundError: before anybody was graded.
    """
    trusted = manifest(lab)
    if only is not None:
        only = trusted.exercise(only).id
    chosen = choose(sandbox)  # type: ignore[arg-type]
    if chosen == "none":
        console.print(
            "[bold yellow]No sandbox:[/] submissions run as you, with your files and your network. "
            "Only for code that you trust."
        )
    kept = None if fresh else folder / ".threeloops"
    options = Options(chosen, jobs=jobs, only=only, records=kept)
    started = time.perf_counter()

    def line(record: Record, resumed: bool) -> None:
        mark = "[green]✓[/]" if record.score == record.max_score else "[yellow]·[/]"
        mark = "[red]✗[/]" if record.status == "failed" else mark
        points = f"{record.score:g}/{record.max_score:g}"
        how = "graded before" if resumed else f"{record.seconds:.1f} s"
        why = f"  {escape(record.notes[0])}" if record.status == "failed" and record.notes else ""
        console.print(f"{mark} {escape(record.student):<24} {points:>9}  [dim]{how}[/]{why}", highlight=False)

    report = grade_class(folder, lab, options, line)
    console.print(_summary(report))
    full = sum(r.score == r.max_score for r in report.records)
    failed = sum(r.status == "failed" for r in report.records)
    console.print(
        f"{len(report.records)} submissions in {time.perf_counter() - started:.1f} s, {full} with full points, "
        f"{failed} not gradable; sandbox: {report.sandbox}",
        highlight=False,
    )
    return report


def _summary(report: ClassReport) -> Table:
    table = Table(title=f"Lab {report.lab}", title_justify="left")
    table.add_column("exercise")
    table.add_column("full points", justify="right")
    for index, test in enumerate(report.records[0].tests):
        full = sum(r.tests[index].score == r.tests[index].max_score for r in report.records)
        table.add_row(test.name.removesuffix("_test"), f"{full} of {len(report.records)}")
    return table


def export(
    report: ClassReport, lab: Lab, json_file: Path | None, csv: Path | None, scope: Path | None, database: str | None
) -> None:
    """Write the report in every form that was asked for, each file whole or not at all."""
    for path, text in ((json_file, lambda: records.to_json(report.to_dict())), (csv, lambda: records.to_csv(report))):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(path, text())
    if scope is not None:
        scope.mkdir(parents=True, exist_ok=True)
        for number, record in enumerate(report.records):
            name = record.student if record.student.replace("_", "").replace("-", "").isalnum() else f"student-{number}"
            replace_text(scope / f"{name}.json", records.to_json(records.gradescope(record)))
    if database is not None:
        from grader.gradebook import feed

        feed(report, lab, database)
