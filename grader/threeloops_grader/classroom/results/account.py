"""The account shown after each step of a lab: roster = graded + ungraded + missing, with names."""

import html
import re
from collections.abc import Sequence
from pathlib import Path

from threeloops.files import replace_text

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.classroom.results.handins import refused_strangers
from threeloops_grader.classroom.results.scores import Row, on_roster
from threeloops_grader.machine.terminal import plain
from threeloops_grader.submissions.folder import spelling

__all__ = ["account", "write_refusals", "write_shared"]


def account(lab: Lab, rows: Sequence[Row], strangers: Sequence[str]) -> str:
    """Return a line with the number of students per status, and lines that name everybody whose work has no points."""
    of = {status: [row for row in rows if row.status == status] for status in ("graded", "ungraded", "missing")}
    lines = [
        f"{lab.slug}: {len(on_roster(rows))} on the roster = " + " + ".join(f"{len(of[name])} {name}" for name in of)
    ]
    lines += [f"ungraded: {row.student.id}: {row.reason}" for row in of["ungraded"]]
    if of["missing"]:
        lines.append(f"missing: {', '.join(row.student.id for row in of['missing'])}")
    lines += [f"dropped: {row.student.id}: {row.reason}" for row in rows if row.status == "dropped"]
    lines += list(dict.fromkeys(note for row in rows for note in row.notes))
    owners = [row.hand_in.student if row.hand_in else row.student.id for row in of["graded"] if row.unmarked]
    if owners:
        lines.append(f"to be marked by hand (0 points until then): {', '.join(dict.fromkeys(owners))}")
    if strangers:
        lines.append(f"handed in, and not on the roster: {', '.join(strangers)}")
        refused = refused_strangers(lab, [row.student.id for row in rows])
        lines += [f"not on the roster, and not graded: {name}: {reason}" for name, reason in refused.items()]
    return plain("\n".join(lines))


def write_refusals(lab: Lab, rows: Sequence[Row]) -> list[Path]:
    """Write a feedback page for each refused submission, which says why it was refused."""
    pages = []
    for row in rows:
        if row.refused and row.status == "ungraded":
            page = Path(lab.root, "feedback", row.student.id, lab.slug, f"{lab.slug}.html")
            page.parent.mkdir(parents=True, exist_ok=True)
            replace_text(page, _PAGE.format(lab=html.escape(lab.slug), why=html.escape(row.reason)))
            pages.append(page)
    return pages


_SCORE = re.compile(r'<p class="head">.*?</p>', re.DOTALL)
"""The line of a feedback page with the points of the student who handed in."""


def write_shared(lab: Lab, rows: Sequence[Row]) -> list[Path]:
    """Copy the feedback page of a group's hand-in to its other members. Each page has the member's own score."""
    pages = []
    for row in rows:
        hand_in = row.hand_in
        if hand_in is None or not hand_in.group or row.score is None:
            continue
        if spelling(hand_in.student) == spelling(row.student.id):
            continue
        source = Path(lab.root, "feedback", hand_in.student, lab.slug, f"{lab.slug}.html")
        if source.is_file():
            text = source.read_text(encoding="utf-8")
            late = f", after {row.penalty:.4g} were lost for lateness" if row.penalty else ""
            note = f"{hand_in.student} handed this in for your group {hand_in.group}. "
            note += f"You have {row.score:.4g} of {row.max_score:g} points{late}."
            own = f'<p class="head">{html.escape(note)}</p>'
            page = Path(lab.root, "feedback", row.student.id, lab.slug, f"{lab.slug}.html")
            page.parent.mkdir(parents=True, exist_ok=True)
            replace_text(page, _SCORE.sub(own.replace("\\", r"\\"), text, count=1))
            pages.append(page)
    return pages


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{lab}</title></head>
<body style="font-family: sans-serif; max-width: 40em; margin: 2em auto; color-scheme: light dark">
<h1>{lab} was not graded</h1>
<p>Your submission was {why}.</p>
<p>It has no points yet. Correct it, run <code>threeloops submit</code>, and hand it in again.</p>
</body></html>
"""
