"""The marked regions of a lab's cells: `### BEGIN SOLUTION … ### END SOLUTION` and the same for HIDDEN TESTS.

nbgrader looks for these words anywhere in a line and removes from one line to the other. The course asks for more: a
marker is a line of its own, opened and closed in the same cell.
"""

from __future__ import annotations

import re
from typing import Literal

NOT_SHOWN = "[not shown: it may repeat the inputs of hidden tests]"
"""Stands for what a student's side said once a hidden test had begun."""

Kind = Literal["SOLUTION", "HIDDEN TESTS"]
KINDS: tuple[Kind, ...] = ("SOLUTION", "HIDDEN TESTS")
STUB = "# YOUR CODE HERE\nraise NotImplementedError()"
"""What nbgrader's ClearSolutions leaves in a code cell."""


def _marker(kind: Kind, side: str) -> re.Pattern[str]:
    return re.compile(rf"(?P<indent>\s*)### {side} {kind}\s*")


def regions(source: str, kind: Kind) -> list[str]:
    """The texts between the markers, in order.

    Raises:
        ValueError: a marker is unclosed, unopened, nested, or not a line of its own; the message names the line.
    """
    begin, end = _marker(kind, "BEGIN"), _marker(kind, "END")
    found: list[str] = []
    inside: list[str] | None = None
    for number, line in enumerate(source.split("\n"), start=1):
        if begin.fullmatch(line):
            if inside is not None:
                raise ValueError(f"line {number} opens a {kind} region inside another one")
            inside = []
        elif end.fullmatch(line):
            if inside is None:
                raise ValueError(f"line {number} closes a {kind} region that was never opened")
            found.append("\n".join(inside))
            inside = None
        elif f"BEGIN {kind}" in line or f"END {kind}" in line:
            raise ValueError(
                f"line {number}, {line.strip()!r}, is no marker: '### BEGIN {kind}' stands on its own line"
            )
        elif inside is not None:
            inside.append(line)
    if inside is not None:
        raise ValueError(f"a {kind} region is opened and never closed with '### END {kind}'")
    return found


def first_line(source: str, kind: Kind) -> int | None:
    """The line, from 1, of the first opening marker; None where there is none."""
    begin = _marker(kind, "BEGIN")
    return next((n for n, line in enumerate(source.split("\n"), start=1) if begin.fullmatch(line)), None)


def without(source: str, kind: Kind) -> str:
    """The text that students see: solution regions become nbgrader's stub, hidden tests vanish."""
    begin, end = _marker(kind, "BEGIN"), _marker(kind, "END")
    kept: list[str] = []
    inside = False
    for line in source.split("\n"):
        if match := begin.fullmatch(line):
            inside = True
            if kind == "SOLUTION":
                kept.extend(match["indent"] + stub for stub in STUB.split("\n"))
        elif end.fullmatch(line):
            inside = False
        elif not inside:
            kept.append(line)
    return "\n".join(kept)
