"""The report of a class: the distribution of points, the hardest parts, and the most frequent mistakes."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import manifest, test_title
from threeloops_grader.classroom.results.scores import Row, on_roster
from threeloops_grader.classroom.results.wrong_answers import Mistake
from threeloops_grader.pages import pages
from threeloops_grader.pages.pages import Cell
from threeloops_grader.pages.spreadsheet import to_csv

__all__ = ["class_csv", "class_page"]

_BANDS = 10
_MAX_MISTAKES = 30
_MAX_MESSAGE = 400


@dataclass(frozen=True)
class _PartResult:
    """How the graded students did in one part. `share` is their mean share of its points."""

    test: str
    points: float
    full: int
    share: float


def _part_results(lab: Lab, rows: Sequence[Row]) -> list[_PartResult]:
    """Return the parts, hardest first, or none if nobody is graded."""
    graded = [row for row in rows if row.status == "graded"]
    if not graded:
        return []
    results = []
    for part in manifest(lab).parts:
        scores = [row.parts.get(part.test, 0.0) for row in graded]
        full = sum(score >= part.points for score in scores)
        share = mean(score / part.points for score in scores) if part.points else 1.0
        results.append(_PartResult(part.test, part.points, full, share))
    return sorted(results, key=lambda result: (result.share, result.full))


def class_page(lab: Lab, rows: Sequence[Row], mistakes: Sequence[Mistake]) -> str:
    """Return the report as one page without scripts. It names no student."""
    gone = len(rows) - len(on_roster(rows))
    rows = on_roster(rows)
    graded = [row.score for row in rows if row.status == "graded" and row.score is not None]
    parts = _part_results(lab, rows)
    lead = f"{len(rows)} students, {sum(row.status != 'missing' for row in rows)} handed in, {len(graded)} graded, "
    lead += f"{_lateness(rows)}."
    lead += f" Not counted: {gone} who left the class." if gone else ""
    if not parts:
        return pages.page(f"Class report, lab {lab.slug}", lead, "<p>Nobody is graded yet.</p>")
    most = rows[0].max_score
    summary = f"Mean {mean(graded):.1f}, median {median(graded):.1f} of {most:g} points after late penalties. "
    summary += f"Hardest part: {test_title(parts[0].test)}, {parts[0].share:.0%} of its points were earned."
    sections = [
        f"<p>{html.escape(summary)}</p><h2>How the points lie</h2>{_distribution(graded, most)}",
        "<h2>Parts, hardest first</h2>",
        pages.table(["Part", "Points", "Full points", "Share earned"], [_part(part, len(graded)) for part in parts]),
        "<h2>What went wrong most often</h2>",
        pages.table(
            ["Exercise", "Students", "Known wrong answer", "Failed parts, and what the first one said"],
            [_mistake(mistake) for mistake in mistakes[:_MAX_MISTAKES]],
        )
        if mistakes
        else "<p>Every answer was right.</p>",
    ]
    sections[1:1] = _sections(rows)
    return pages.page(f"Class report, lab {lab.slug}", lead, *sections)


def _lateness(rows: Sequence[Row]) -> str:
    """Return how many were late, had an extension, and spent slip days."""
    text = f"{sum(row.seconds_late > 0 for row in rows)} late"
    if extended := sum(bool(row.lateness.extension) for row in rows):
        text += f", {extended} with an extension"
    if spent := sum(row.lateness.slip_days for row in rows):
        text += f", {spent} slip day{'s' * (spent != 1)} spent"
    return text


def _section_results(rows: Sequence[Row]) -> list[list[str]]:
    """Return a row per section, or none if the roster has no sections. Students of several sections are a section of
    their own, so that the numbers add up to the class."""
    names = sorted({row.student.section for row in rows})
    table = []
    for name in names if names != [""] else []:
        of = [row for row in rows if row.student.section == name]
        scores = [row.score for row in of if row.status == "graded" and row.score is not None]
        averages = [f"{mean(scores):.1f}", f"{median(scores):.1f}"] if scores else ["", ""]
        counts = [sum(row.status == status for row in of) for status in ("graded", "ungraded", "missing")]
        late = sum(row.seconds_late > 0 for row in of)
        table.append([name or "(none)", str(len(of)), *map(str, counts), str(late), *averages])
    return table


_SECTION_HEAD = ["Section", "Students", "Graded", "Ungraded", "Missing", "Late", "Mean", "Median"]


def _sections(rows: Sequence[Row]) -> list[str]:
    table = _section_results(rows)
    cells: list[list[Cell | str]] = [[name, *(Cell(text, "number") for text in numbers)] for name, *numbers in table]
    return ["<h2>Sections</h2>", pages.table(_SECTION_HEAD, cells)] if table else []


def _distribution(scores: Sequence[float], most: float) -> str:
    """Draw a bar per tenth of the points. The last one holds full points alone."""
    counts = [0] * (_BANDS + 1)
    for score in scores:
        counts[min(_BANDS, int(score / most * _BANDS + 1e-9)) if most else _BANDS] += 1
    width = 56
    height = 120
    top = max(counts)
    bars = []
    for at, count in enumerate(counts):
        tall = round(height * count / top)
        low = most * at / _BANDS
        high = most * (at + 1) / _BANDS
        label = f"{low:.3g}" if at == _BANDS else f"{low:.3g}–{high:.3g}"
        x = at * width
        bars.append(
            f"<rect x='{x + 4}' y='{height - tall + 20}' width='{width - 8}' height='{tall}' fill='var(--good)'/>"
            f"<text x='{x + width / 2}' y='{height - tall + 14}' text-anchor='middle'>{count or ''}</text>"
            f"<text x='{x + width / 2}' y='{height + 38}' text-anchor='middle'>{label}</text>"
        )
    return (
        f"<svg viewBox='0 0 {width * len(counts)} {height + 46}' role='img' aria-label='Students per band of points' "
        f"style='width:100%;max-width:44rem;fill:currentColor;font:12px system-ui'>{''.join(bars)}</svg>"
    )


def _part(part: _PartResult, graded: int) -> list[Cell | str]:
    kind = "number " + ("bad" if part.share < 0.5 else "good" if part.share >= 0.9 else "")
    full = Cell(f"{part.full} of {graded}", "number")
    return [test_title(part.test), Cell(f"{part.points:g}", "number"), full, Cell(f"{part.share:.0%}", kind)]


def _mistake(mistake: Mistake) -> list[Cell | str]:
    parts = ", ".join(test_title(test) for test in mistake.parts)
    example = f"{parts}\n{mistake.message[:_MAX_MESSAGE]}"
    return [
        mistake.exercise,
        Cell(str(mistake.students), "number"),
        mistake.known_as or "not recognised",
        Cell(example, "pre"),
    ]


def class_csv(lab: Lab, rows: Sequence[Row], mistakes: Sequence[Mistake]) -> str:
    """Return parts, then mistakes, then sections, in one CSV table whose first column says which. A section has its
    mean points, and the share of its students who are graded."""
    rows = on_roster(rows)
    table: list[list[object]] = [["kind", "exercise or part", "points", "students", "share", "known as", "message"]]
    table += [
        ["part", test_title(p.test), p.points, p.full, f"{p.share:.4f}", "", ""] for p in _part_results(lab, rows)
    ]
    table += [["mistake", m.exercise, "", m.students, "", m.known_as, m.message] for m in mistakes]
    for name, students, graded, *_, average, _ in _section_results(rows):
        table.append(["section", name, average, students, f"{int(graded) / int(students):.4f}", "", ""])
    return to_csv(table)
