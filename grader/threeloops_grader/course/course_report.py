"""Write the reports of `make course`: a page for each executed notebook, the claims, an index, JSON and JUnit XML."""

import platform
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from threeloops.files import replace_text
from threeloops.lab import claims
from threeloops.lab.course import outline

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.course import claims_page
from threeloops_grader.course.course import unsettled
from threeloops_grader.course.execute import CourseReport
from threeloops_grader.grading import records
from threeloops_grader.pages import pages
from threeloops_grader.pages.navigation import PageLink
from threeloops_grader.pages.pages import Cell

__all__ = ["junit", "write"]


def write(report: CourseReport, reports: Path) -> None:
    """Write the reports and a page per executed notebook, each file whole or not at all."""
    (reports / "labs").mkdir(parents=True, exist_ok=True)
    for outcome in report.labs:
        for lab, executed in zip(outcome.lab.notebooks, outcome.executed, strict=True):
            title = f"{lab.number:02} · {lab.title}"
            page = pages.notebook_page(executed.notebook, title, _beside(lab, outcome.lab.notebooks))
            if remote := pages.remote_references(page):
                outcome.faults.append(f"its page {lab.stem} would load from elsewhere: {remote[0]}")
            replace_text(reports / "labs" / f"{lab.stem}.html", page)
    listed = claims_page.rows(report)
    replace_text(reports / "claims.html", claims_page.html_page(listed))
    replace_text(reports / "claims.md", claims_page.markdown(listed))
    replace_text(reports / "course.html", _index_page(report))
    replace_text(reports / "course.json", records.to_json(report.to_dict()))
    replace_text(reports / "junit.xml", junit(report))


def _beside(notebook: Lab, notebooks: Sequence[Lab]) -> list[PageLink]:
    """Return links from a lab's page to the course, the claims, and the lab's other notebook."""
    others = [other for other in notebooks if other.stem != notebook.stem]
    names = {True: "Deep dives", False: "The lab"}
    links = [PageLink("All labs", "../course.html"), PageLink("Claims", "../claims.html")]
    return links + [PageLink(names[other.dives], f"{other.stem}.html") for other in others]


def _index_page(report: CourseReport) -> str:
    header = ["Lab", "Seconds", "Verified on", "Reference", "Untouched", "Half done"]
    isolation = " (no isolation: bubblewrap does not work here)" if report.sandbox == "none" else ""
    lead = (
        f"Executed on {report.device} in {report.seconds:.0f} s with Python {platform.python_version()}; "
        f"graded through the wall, sandbox: {report.sandbox}{isolation}."
    )
    rows: list[list[Cell | str]] = []
    for outcome in report.labs:
        lab = outcome.lab
        link = Cell(f"{lab.number:02} · {lab.title}", href=f"labs/{lab.slug}.html")
        rows.append([link, Cell(f"{outcome.seconds:.1f}", "number"), outcome.verified_on])
        for name, points in outcome.expected.items():
            record = outcome.grades.get(name)
            graded = record is not None and record.score == points
            words = f"{record.score:g} / {record.max_score:g}" if record else "not graded"
            rows[-1].append(Cell(words, f"number {'good' if graded else 'bad'}"))
    sections = [pages.table(header, rows)]
    if report.faults:
        faults = pages.table(["What fell short"], [[Cell(f, "bad")] for f in report.faults])
        sections.append(f"<h2>Faults</h2>{faults}")
    sections.append("<p><a href='claims.html'>What the source texts assert, and what these notebooks found</a></p>")
    described = outline.rows({outcome.lab.slug: outcome.lab.minutes for outcome in report.labs})
    sections.append(f"<h2>The course</h2>{pages.table(outline.COLUMNS, described)}")
    sections.append(f"<h2>Notation and units</h2>{pages.table(outline.NOTATION_COLUMNS, outline.notation())}")
    return pages.page("Three Loops", lead, *sections)


def junit(report: CourseReport) -> str:
    """Return the report as JUnit XML: one suite per lab, one case per thing that must hold."""
    root = ElementTree.Element("testsuites")
    for outcome in report.labs:
        slug = outcome.lab.slug
        names = [f"executed {lab.stem}" for lab in outcome.lab.notebooks]
        cases = [(name, done.seconds, done.error) for name, done in zip(names, outcome.executed, strict=True)]
        for name, record in outcome.grades.items():
            expected = outcome.expected[name]
            wrong = "" if record.score == expected else f"scored {record.score:g}, expected {expected:g}"
            cases.append((name, record.seconds, wrong))
        if any(int(claim.lab) == outcome.lab.number for claim in claims().values()):
            cases.append(("claims", 0.0, "; ".join(unsettled(outcome.lab, outcome.executed))))
        failures = str(sum(bool(wrong) for *_, wrong in cases))
        suite = ElementTree.SubElement(root, "testsuite", name=slug, time=f"{outcome.seconds:.3f}")
        suite.attrib.update(tests=str(len(cases)), failures=failures)
        for name, seconds, wrong in cases:
            case = ElementTree.SubElement(suite, "testcase", name=name, classname=slug, time=f"{seconds:.3f}")
            if wrong:
                ElementTree.SubElement(case, "failure", message=wrong)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
