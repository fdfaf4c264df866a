"""The marked regions of a lab's cells: `### BEGIN SOLUTION … ### END SOLUTION` and the same for HIDDEN TESTS.

nbgrader looks for these words anywhere in a line. The course is stricter, so that no typing error releases an answer: a
marker stands on a line of its own, and a region is opened and closed in the same cell.
"""

import re
from collections.abc import Iterator
from typing import Literal

__all__ = ["KINDS", "Kind", "NOT_SHOWN", "first_line", "regions", "unmarked", "without"]

NOT_SHOWN = "[not shown: it may repeat the inputs of hidden tests]"
"""The replacement for text that the student's side printed after a hidden test had begun."""

Kind = Literal["SOLUTION", "HIDDEN TESTS"]
KINDS: tuple[Kind, ...] = ("SOLUTION", "HIDDEN TESTS")
_STUB = "# YOUR CODE HERE\nraise NotImplementedError()"
"""The text that nbgrader's ClearSolutions leaves in a code cell."""


def _lines(source: str, kind: Kind) -> Iterator[tuple[int, str, str]]:
    """Yield each line with its number, from 1, and with "BEGIN" or "END" if it is a marker of this kind."""
    marker = re.compile(rf"\s*### (BEGIN|END) {kind}\s*")
    for number, line in enumerate(source.split("\n"), start=1):
        match = marker.fullmatch(line)
        yield number, line, match[1] if match else ""


def regions(source: str, kind: Kind) -> list[str]:
    """Return the texts between the markers, in order.

    Raises:
        ValueError: a marker is unclosed, unopened, nested, or not a line of its own; the message names the line.
    """
    contents: list[str] = []
    inside: list[str] | None = None
    for number, line, marker in _lines(source, kind):
        if marker == "BEGIN":
            if inside is not None:
                raise ValueError(f"line {number} opens a {kind} region inside another one")
            inside = []
        elif marker == "END":
            if inside is None:
                raise ValueError(f"line {number} closes a {kind} region that was never opened")
            contents.append("\n".join(inside))
            inside = None
        elif f"BEGIN {kind}" in line or f"END {kind}" in line:
            side = "END" if f"END {kind}" in line else "BEGIN"
            raise ValueError(
                f"line {number}, {line.strip()!r}, is not a marker: expected '### {side} {kind}' on a line of its own"
            )
        elif inside is not None:
            inside.append(line)
    if inside is not None:
        raise ValueError(f"a {kind} region is opened and never closed with '### END {kind}'")
    return contents


def first_line(source: str, kind: Kind) -> int | None:
    """Return the line, from 1, of the first opening marker, or None if there is none."""
    return next((number for number, _, marker in _lines(source, kind) if marker == "BEGIN"), None)


def unmarked(source: str, kind: Kind) -> str:
    """Return the text without its markers."""
    return "\n".join(line for _, line, marker in _lines(source, kind) if not marker)


def without(source: str, kind: Kind) -> str:
    """Return the text that students see: solution regions become nbgrader's stub, hidden tests vanish."""
    outside: list[str] = []
    inside = False
    for _, line, marker in _lines(source, kind):
        if marker:
            inside = marker == "BEGIN"
            if inside and kind == "SOLUTION":
                indent = line[: len(line) - len(line.lstrip())]
                outside += [indent + stub for stub in _STUB.split("\n")]
        elif not inside:
            outside.append(line)
    return "\n".join(outside)
