"""The page of `threeloops class similar`: pairs of answers side by side, with advice on how to read them."""

import html
from collections import defaultdict
from collections.abc import Sequence, Set

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.classroom.similar.comparison import ComparedAnswer, Findings, Pair
from threeloops_grader.pages import pages
from threeloops_grader.pages.pages import Cell

__all__ = ["similar_page"]

_CAUTION = """
<p><strong>This page does not show that anybody copied.</strong> A short exercise has few good answers, so students who
worked alone often write nearly the same program. The more exercises two people share, and the more unusual their common
choices are, the less likely that is. Students may also have worked together as the rules of your class allow, have
asked the same assistant, or have read the library or the solutions, which are public.</p>
<p>A person decides, after looking at both answers and talking to both students. Do not pass on a share as a
verdict.</p>
<p>Each share says how much of the smaller answer, beyond the stub, is also in the larger one. Names, comments, format,
annotations and the order of statements do not count. Marked lines hold a common part.</p>
"""
_STYLE = """
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; } .pair > div { overflow-x: auto; min-width: 0; }
.pair pre { white-space: pre; } .pair mark { background: color-mix(in srgb, var(--good) 18%, transparent);
  color: inherit; display: inline-block; min-width: 100%; }
details { margin: .6rem 0; } summary { cursor: pointer; }
@media (max-width: 46rem) { .pair { grid-template-columns: 1fr; } }
"""


def similar_page(lab: Lab, findings: Findings) -> str:
    """Return the page, without scripts. It names students, so it is for instructors only."""
    within = [pair for pair in findings.pairs if pair.second.is_of_class]
    outside = [pair for pair in findings.pairs if not pair.second.is_of_class]
    lead = f"{findings.students} submissions. {len(within)} pairs of answers within the class are alike, and "
    lead += f"{len(outside)} answers are like a text from elsewhere."
    sections = [_CAUTION]
    if within:
        sections += ["<h2>Who shares answers</h2>", _people(within)]
    for title, pairs in (("Within the class", within), ("Like a text from elsewhere", outside)):
        if pairs:
            sections += [f"<h2>{title}</h2>", *map(_pair, pairs)]
    if findings.small:
        few = f"Too small to compare, because there are few ways to write them: {', '.join(findings.small)}."
        sections.append(f"<h2>Not compared</h2><p>{html.escape(few)}</p>")
    if findings.faults:
        items = "".join(f"<li>{html.escape(fault)}</li>" for fault in findings.faults)
        sections.append(f"<h2>Not read</h2><ul>{items}</ul>")
    return pages.page(f"Similar answers, lab {lab.slug}", lead, *sections, style=_STYLE)


def _people(pairs: Sequence[Pair]) -> str:
    """Return a table of pairs of students and the exercises in which they are alike, the longest list first."""
    shared: dict[tuple[str, str], list[str]] = defaultdict(list)
    for pair in pairs:
        shared[pair.first.owner, pair.second.owner].append(pair.exercise)
    rows: list[list[Cell | str]] = [
        [first, second, Cell(str(len(exercises)), "number"), ", ".join(exercises)]
        for (first, second), exercises in sorted(shared.items(), key=lambda item: -len(item[1]))
    ]
    return pages.table(["Student", "Student", "Exercises", "Which"], rows)


def _pair(pair: Pair) -> str:
    summary = f"{pair.exercise}: {pair.first.owner} and {pair.second.owner}, {pair.share:.0%}"
    sides = (_side(pair.first, pair.second), _side(pair.second, pair.first))
    return f"<details><summary>{html.escape(summary)}</summary><div class='pair'>{''.join(sides)}</div></details>"


def _side(answer: ComparedAnswer, other: ComparedAnswer) -> str:
    marked = answer.fingerprint.lines_shared_with(other.fingerprint)
    lines = "\n".join(_line(text, at, marked) for at, text in enumerate(answer.source.splitlines(), start=1))
    return f"<div><strong>{html.escape(answer.owner)}</strong><pre>{lines}</pre></div>"


def _line(text: str, number: int, marked: Set[int]) -> str:
    shown = html.escape(text)
    return f"<mark>{shown}</mark>" if number in marked and text.strip() else shown
