"""What `make course` writes: a page for each executed notebook, an index, JSON and JUnit XML."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from nbformat import NotebookNode
from threeloops.files import replace_text

from grader.course.course import CourseReport, LabOutcome
from grader.grading import records
from grader.pages import pages
from grader.pages.pages import Cell

AUDIT = "application/vnd.threeloops.audit+json"


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
