"""The course on one page: what each lab requires, what it measures, its hours, and the notation that all labs share."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from threeloops.lab.course.loops import LOOPS, labs

__all__ = ["COLUMNS", "NOTATION_COLUMNS", "notation", "page", "readme_table", "rows"]

COLUMNS = ("lab", "question", "what you measure", "needs first", "hours")
NOTATION_COLUMNS = ("written", "meaning", "labs")


@dataclass(frozen=True)
class _Entry:
    """A lab's entry. `needs` lists the labs that it builds on, and `measures` says what its reader measures."""

    needs: tuple[int, ...]
    measures: str


@cache
def _file() -> dict:
    return json.loads(resources.files(__package__).joinpath("outline.json").read_text(encoding="utf-8"))


@cache
def _entries() -> dict[int, _Entry]:
    return {int(number): _Entry(tuple(row["needs"]), row["measures"]) for number, row in _file()["labs"].items()}


def rows(minutes: Mapping[str, int]) -> list[tuple[str, ...]]:
    """A row of `COLUMNS` for each lab of the course that `minutes` names (`03_triton_fusion`), in their order.

    Raises ValueError if a lab stands on the map (`loops.py`) and not in outline.json.
    """
    present = [lab for lab in labs() if lab.name in minutes]
    entries = _entries()
    if missing := [lab.name for lab in present if lab.number not in entries]:
        raise ValueError(f"outline.json says nothing of {', '.join(missing)}: add what each needs and measures")
    return [
        (
            f"{lab.number:02} · {lab.title}",
            lab.question,
            entries[lab.number].measures,
            ", ".join(f"{number:02}" for number in entries[lab.number].needs) or "—",
            _hours(minutes[lab.name]),
        )
        for lab in present
    ]


def _hours(minutes: int) -> str:
    """170 → "2 h 50"."""
    return f"{minutes // 60} h {minutes % 60:02}" if minutes % 60 else f"{minutes // 60} h"


def notation() -> list[tuple[str, str, str]]:
    """Return the meaning of letters and units, and the labs that use them: rows of `NOTATION_COLUMNS`."""
    return [(row["written"], row["meaning"], row["labs"]) for row in _file()["notation"]]


def readme_table(minutes: Mapping[str, int]) -> str:
    """A line for each lab of `minutes`, for the README: question, hours, and the labs to take before."""
    names = [lab.name for lab in labs() if lab.name in minutes]
    named = zip(names, rows(minutes), strict=True)
    body = [(f"{name[:2]} {name[3:]}", question, hours, needs) for name, (_, question, _, needs, hours) in named]
    return "\n".join(_table(("lab", "question", "hours", "needs"), body)) + "\n"


def page(minutes: Mapping[str, int]) -> str:
    """Return the course in Markdown: the labs of `minutes` by loop, prerequisites, notation and units."""
    lines = ["# The course", "", *_file()["introduction"]]
    for loop, title in LOOPS.items():
        of_loop = {lab.name: minutes[lab.name] for lab in labs() if lab.loop == loop and lab.name in minutes}
        if of_loop:
            lines += ["", f"## {title}", "", *_table(COLUMNS, rows(of_loop))]
    whole = sum(minutes[lab.name] for lab in labs() if lab.name in minutes)
    lines += ["", f"Together: {whole / 60:.0f} hours for the core notebooks.", ""]
    lines += ["## Notation and units", "", *_file()["reading"], "", *_table(NOTATION_COLUMNS, notation())]
    return "\n".join(lines) + "\n"


def _table(header: tuple[str, ...], body: Sequence[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in [header, ("---",) * len(header), *body]]
