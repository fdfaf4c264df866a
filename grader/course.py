"""`make course`: release the labs, execute every solution, grade three submissions of each through the wall, report."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
from nbformat import NotebookNode

from grader import pages, records
from grader.execute import Executed, execute_solution
from grader.files import replace_text
from grader.grade import Options, grade_notebook
from grader.labs import Lab
from grader.manifest import Kind, manifest
from grader.pages import Cell
from grader.records import Record
from grader.release import release
from grader.sandbox import bwrap
from grader.sandbox.pool import Sandbox, close_pools

AUDIT = "application/vnd.threeloops.audit+json"
STUB = "raise NotImplementedError()"


@dataclass(frozen=True)
class Step:
    """Where the course is, for whoever watches: an executed cell, a graded test, or the end of a step."""

    lab: str
    what: str
    cell: int = 0
    of: int = 0
    points: float | None = None
    max_points: float | None = None
    seconds: float = 0.0
    done: bool = False


Watch = Callable[[Step], None]


@dataclass
class LabOutcome:
    """Everything that the course found out about one lab."""

    lab: Lab
    executed: Executed
    verified_on: str
    grades: dict[str, Record]
    expected: dict[str, float]
    faults: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.executed.seconds + sum(r.seconds for r in self.grades.values())

    def to_dict(self) -> dict[str, Any]:
        scores = {k: {"score": r.score, "max_score": r.max_score} for k, r in self.grades.items()}
        summary = {"lab": self.lab.slug, "seconds": round(self.seconds, 2), "verified_on": self.verified_on}
        return {**summary, **scores, "faults": self.faults}


@dataclass
class CourseReport:
    device: str
    sandbox: Sandbox
    labs: list[LabOutcome]
    seconds: float

    @property
    def faults(self) -> list[str]:
        return [f"{o.lab.slug}: {fault}" for o in self.labs for fault in o.faults]

    def to_dict(self) -> dict[str, Any]:
        labs = [o.to_dict() for o in self.labs]
        return {"device": self.device, "sandbox": self.sandbox, "seconds": round(self.seconds, 2), "labs": labs}


def run_course(
    labs: Sequence[Lab], reports: Path, device: str = "auto", watch: Watch = lambda step: None
) -> CourseReport:
    """Run the whole chain for each lab and write `course.html`, `course.json` and `junit.xml` into `reports`.

    The sandbox is bubblewrap where it works, else none, and the report says which. Faults are collected, not raised.

    Raises:
        LabError: a source breaks a rule, so that nothing can be released.
    """
    started = time.perf_counter()
    release(labs)
    sandbox: Sandbox = "none" if bwrap.why_not() else "bwrap"
    outcomes = [run_lab(lab, reports / "executed" / lab.slug, device, sandbox, watch) for lab in labs]
    report = CourseReport(device_name(device), sandbox, outcomes, time.perf_counter() - started)
    write(report, reports)
    return report


def run_lab(lab: Lab, folder: Path, device: str, sandbox: Sandbox, watch: Watch) -> LabOutcome:
    """Execute one lab's solution, then grade the reference, the untouched lab and a half-done one."""
    began = time.perf_counter()

    def on_cell(cell: int, of: int) -> None:
        watch(Step(lab.slug, "executing", cell, of, seconds=time.perf_counter() - began))

    executed = execute_solution(lab, device, folder, on_cell)
    watch(Step(lab.slug, "executed", seconds=executed.seconds, done=True))
    grades, expected = {}, {}
    for name, (notebook, points) in submissions(lab).items():
        grades[name] = _grade(lab, name, notebook, sandbox, watch)
        expected[name] = points
    close_pools()
    outcome = LabOutcome(lab, executed, device_name(device), grades, expected)
    if executed.error:
        outcome.faults.append(f"the solution notebook failed: {executed.error}")
    for name, record in grades.items():
        if record.score != expected[name] or record.status != "graded":
            why = "; ".join(record.notes + [f"{t.name}: {t.output}" for t in record.tests if t.score != t.max_score])
            outcome.faults.append(f"{name} scored {record.score:g}, expected {expected[name]:g} ({why[:600]})")
    return outcome


def _grade(lab: Lab, name: str, notebook: NotebookNode, sandbox: Sandbox, watch: Watch) -> Record:
    trusted, points, began = manifest(lab), 0.0, time.perf_counter()
    what = name.replace("_", " ")
    count = 0

    def on_test(result: Any) -> None:
        nonlocal points, count
        points, count = points + result.score, count + 1
        seconds = time.perf_counter() - began
        watch(Step(lab.slug, what, count, len(trusted.exercises), points, trusted.max_score, seconds))

    record = grade_notebook(notebook, lab, name, Options(sandbox), on_test)
    watch(Step(lab.slug, what, 0, 0, record.score, record.max_score, record.seconds, done=True))
    return record


def submissions(lab: Lab) -> dict[str, tuple[NotebookNode, float]]:
    """The three submissions that every lab must tell apart, with the score that each must earn."""
    trusted = manifest(lab)
    untouched = nbformat.read(lab.released, as_version=4)
    half_done = nbformat.read(lab.released, as_version=4)
    first = trusted.exercises[: len(trusted.exercises) // 2]
    answers = {c.id: c.source for c in trusted.master.cells if trusted.kinds[c.id] is Kind.SOLUTION}
    for cell in half_done.cells:
        if cell.id in {e.id for e in first}:
            cell.source = answers[cell.id]
    return {
        "reference": (lab.master(), trusted.max_score),
        "untouched": (untouched, 0.0),
        "half_done": (half_done, sum(e.points for e in first)),
    }


def device_name(device: str = "auto") -> str:
    """`"cpu"` or `"cuda:<device name>"`: where the labs' measurements were made."""
    import torch

    if device == "cpu" or not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{torch.cuda.get_device_name()}"


def audits(notebook: NotebookNode) -> list[dict[str, Any]]:
    """The verdicts that an executed notebook printed, in order."""
    outputs = [o for c in notebook.cells for o in c.get("outputs", [])]
    return [o["data"][AUDIT] for o in outputs if AUDIT in o.get("data", {})]


def write(report: CourseReport, reports: Path) -> None:
    """Write the three reports and a page for each executed notebook, each whole or not at all."""
    reports.mkdir(parents=True, exist_ok=True)
    (reports / "labs").mkdir(exist_ok=True)
    for outcome in report.labs:
        title = f"{outcome.lab.number:02} · {outcome.lab.title}"
        page = pages.notebook_page(outcome.executed.notebook, title)
        if remote := pages.remote_references(page):
            outcome.faults.append(f"its page would load from elsewhere: {remote[0]}")
        replace_text(reports / "labs" / f"{outcome.lab.slug}.html", page)
    replace_text(reports / "course.html", index_page(report))
    replace_text(reports / "course.json", records.to_json(report.to_dict()))
    replace_text(reports / "junit.xml", junit(report))


def index_page(report: CourseReport) -> str:
    rows = [_row(o) for o in report.labs]
    header = ["Lab", "Seconds", "Verified on", "Reference", "Untouched", "Half done"]
    lead = (
        f"Executed on {report.device} in {report.seconds:.0f} s with Python {sys.version.split()[0]}; "
        f"graded through the wall, sandbox: {report.sandbox}"
        + (" (no isolation: bubblewrap does not work here)." if report.sandbox == "none" else ".")
    )
    sections = [pages.table(header, rows)]
    if report.faults:
        faults = pages.table(["What fell short"], [[Cell(f, "bad")] for f in report.faults])
        sections.append(f"<h2>Faults</h2>{faults}")
    found = [(o, a) for o in report.labs for a in audits(o.executed.notebook)]
    if found:
        claims = [
            [
                Cell(a["id"], href=f"labs/{o.lab.slug}.html"),
                str(a.get("claim", "")),
                Cell(f"{a['number']} {a['unit']}".strip(), "number"),
                a["level"],
                a["verdict"],
            ]
            for o, a in found
        ]
        table = pages.table(["Claim", "What the source asserts", "Found", "Level", "Verdict"], claims)
        sections.append(f"<h2>Claims, audited by the executed notebooks</h2>{table}")
    return pages.page("Three Loops", lead, *sections)


def _row(outcome: LabOutcome) -> list[Cell | str]:
    lab = outcome.lab
    row: list[Cell | str] = [
        Cell(f"{lab.number:02} · {lab.title}", href=f"labs/{lab.slug}.html"),
        Cell(f"{outcome.seconds:.1f}", "number"),
        outcome.verified_on,
    ]
    for name, record in outcome.grades.items():
        kind = "good" if record.score == outcome.expected[name] else "bad"
        row.append(Cell(f"{record.score:g} / {record.max_score:g}", f"number {kind}"))
    return row


def junit(report: CourseReport) -> str:
    """The report as JUnit XML: one suite a lab, one case for each thing that must hold."""
    root = ElementTree.Element("testsuites")
    for outcome in report.labs:
        suite = ElementTree.SubElement(root, "testsuite", name=outcome.lab.slug, time=f"{outcome.seconds:.3f}")
        cases = [("executed", outcome.executed.seconds, outcome.executed.error)]
        for name, record in outcome.grades.items():
            expected = outcome.expected[name]
            wrong = "" if record.score == expected else f"scored {record.score:g}, expected {expected:g}"
            cases.append((name, record.seconds, wrong))
        for name, seconds, wrong in cases:
            case = ElementTree.SubElement(
                suite, "testcase", name=name, classname=outcome.lab.slug, time=f"{seconds:.3f}"
            )
            if wrong:
                ElementTree.SubElement(case, "failure", message=wrong)
        suite.set("tests", str(len(cases)))
        suite.set("failures", str(sum(bool(w) for *_, w in cases)))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def read_report(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))
