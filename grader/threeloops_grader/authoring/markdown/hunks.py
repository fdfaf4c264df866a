"""Hunks of a change, marked as in a unified diff: `-` removes a line, `+` adds one, a space leaves one as it is.

They have no line numbers. The lines that a hunk removes or leaves name its place, so they must occur exactly once.
"""

import difflib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["SEPARATOR", "Hunk", "apply", "common", "difference", "split"]

SEPARATOR = "@@"
"""The line between two hunks of a change."""


@dataclass(frozen=True)
class Hunk:
    """Lines with their marks. `line` is the line of the file on which the hunk begins."""

    line: int
    marked: tuple[str, ...]

    @property
    def before(self) -> list[str]:
        """The lines of the reference that the hunk removes or leaves."""
        return [marked[1:].rstrip() for marked in self.marked if not marked.startswith("+")]

    @property
    def after(self) -> list[str]:
        """The lines of the answer in their place."""
        return [marked[1:].rstrip() for marked in self.marked if not marked.startswith("-")]


def apply(hunks: Sequence[Hunk], reference: str) -> str:
    """Return the reference with the hunks applied.

    Raises ValueError, with the line of the hunk, if the reference does not have its lines exactly once.
    """
    lines = [line.rstrip() for line in reference.splitlines()]
    places = sorted(((_place(lines, hunk), hunk) for hunk in hunks), key=lambda place: place[0])
    for (start, hunk), (following, other) in pairwise(places):
        if following < start + len(hunk.before):
            raise ValueError(f"line {other.line}: this hunk and the one in line {hunk.line} share a line; join them")
    for start, hunk in reversed(places):
        lines[start : start + len(hunk.before)] = hunk.after
    return "".join(f"{line}\n" for line in lines)


def _place(lines: list[str], hunk: Hunk) -> int:
    before = hunk.before
    if before == hunk.after:
        raise ValueError(f"line {hunk.line}: this hunk changes nothing; mark lines with - and +")
    if not before:
        raise ValueError(
            f"line {hunk.line}: this hunk adds lines without saying where; add the line of the reference before them"
        )
    starts = [i for i in range(len(lines)) if lines[i : i + len(before)] == before]
    shown = "\n".join(f"    {line}" for line in before)
    if not starts:
        raise ValueError(f"line {hunk.line}: the reference does not have these lines, one after the other:\n{shown}")
    if len(starts) > 1:
        raise ValueError(
            f"line {hunk.line}: the reference has these lines {len(starts)} times; "
            f"add a line before or after them that it does not change:\n{shown}"
        )
    return starts[0]


def difference(reference: str, answer: str) -> list[str]:
    """Return the lines of the hunks that turn the reference into the answer, with no more context than they need.

    Raises ValueError if the answer is the reference.
    """
    before, after = ([line.rstrip() for line in text.splitlines()] for text in (reference, answer))
    for context in range(len(before) + 1):
        lines = list(difflib.unified_diff(before, after, n=context, lineterm=""))
        marked = [SEPARATOR if line.startswith(SEPARATOR) else line.rstrip() for line in lines[3:]]  # no names
        with suppress(ValueError):  # the lines of a hunk may occur twice, and need more context
            if apply(split(marked, 1), reference).splitlines() == after:
                return marked
    raise ValueError("the answer is the reference: there is no change to write down")


def split(marked: Sequence[str], first: int) -> tuple[Hunk, ...]:
    """Return the hunks in the lines between two fences. The first of these lines is line `first` of the file."""
    hunks = []
    start = 0
    for position in [i for i, line in enumerate(marked) if line.strip() == SEPARATOR] + [len(marked)]:
        hunks.append(Hunk(first + start, tuple(marked[start:position])))
        start = position + 1
    return tuple(hunks)


def common(reference: str, answer: str) -> float:
    """Return the share of their lines that two texts have in common, from 0 to 1."""
    return difflib.SequenceMatcher(None, reference.splitlines(), answer.splitlines(), autojunk=False).ratio()
