"""The rubric of a lab's reflection: criteria with points, in the lab's header, and the table that students read.

rubric:
  - {name: evidence, points: 4, text: quotes a number that you measured}
  - {name: limits, points: 3, text: says when the claim fails}
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Criterion", "criteria", "rubric_faults", "rubric_table"]

_MOST = 8
_LONGEST = 200
_NAME = re.compile(r"[a-z][a-z0-9_]{0,29}")
_BEFORE = "reflection_"


@dataclass(frozen=True)
class Criterion:
    """One row of a rubric. `name` is a short word, `text` what earns the points."""

    name: str
    points: float
    text: str

    @property
    def cell(self) -> str:
        """The criterion's name in nbgrader's gradebook."""
        return f"{_BEFORE}{self.name}"


def criteria(header: Any) -> tuple[Criterion, ...]:
    """Return the criteria of a header's `rubric`, which `rubric_faults` has found sound; none if it has no rubric."""
    return tuple(Criterion(row["name"], float(row["points"]), str(row["text"]).strip()) for row in header or ())


def rubric_faults(header: Any) -> Iterator[str]:
    """Yield a sentence per broken rule in a header's `rubric`."""
    if header is None:
        return
    if not isinstance(header, list) or not 1 <= len(header) <= _MOST:
        yield f"header: rubric is {header!r}, expected a list of 1 to {_MOST} criteria with name, points and text"
        return
    for number, row in enumerate(header, start=1):
        if not isinstance(row, dict) or row.keys() != {"name", "points", "text"}:
            yield f"header: criterion {number} of the rubric is {row!r}, expected name, points and text"
            continue
        if not isinstance(row["name"], str) or not _NAME.fullmatch(row["name"]):
            yield f"header: a criterion's name is {row['name']!r}, expected at most 30 small letters, digits and _"
        points = row["points"]
        if isinstance(points, bool) or not isinstance(points, int | float) or not 0 < points <= 1000:
            yield f"header: criterion {row['name']} has {points!r} points, expected a number above 0, at most 1000"
        text = str(row["text"]).strip()
        if not isinstance(row["text"], str) or not text or len(text) > _LONGEST or "\n" in text or "|" in text:
            yield (
                f"header: the text of criterion {row['name']} is {row['text']!r}, expected 1 to {_LONGEST} characters "
                "on one line, without |"
            )
    names = Counter(row.get("name") for row in header if isinstance(row, dict) and isinstance(row.get("name"), str))
    for name, count in names.items():
        if count > 1:
            yield f"header: {count} criteria of the rubric are called {name}; each needs a name of its own"


def rubric_table(rubric: Sequence[Criterion]) -> str:
    """Return the rubric as students read it below the reflection's question."""
    total = sum(criterion.points for criterion in rubric)
    rows = [f"| {c.name.replace('_', ' ')} | {c.text} | {c.points:g} |" for c in rubric]
    head = ["", "", f"Your answer earns up to {total:g} points:", "", "| criterion | what earns the points | points |"]
    return "\n".join([*head, "|---|---|---|", *rows])
