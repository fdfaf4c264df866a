"""Rows of a measurement in a file, a JSON object a line, each on disk as soon as it is known.

Whoever ends the process that measures loses the row it was at and no other; the next process goes on from there. Work
that comes in pieces notes where each begins and ends, so that one that was cut off is done again.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

Row = dict[str, Any]
PIECE, STATE = "piece", "state"
BEGUN, ENDED = "begun", "ended"
MOST_ATTEMPTS = 2
"""A piece that was begun so often and never ended hangs or takes its process down: it is not begun again."""


def begin(path: Path, about: str) -> None:
    """Make `path` ready for rows that hold for `about`: rows of something else are dropped, its own are kept."""
    header = json.dumps({"about": about}, ensure_ascii=False)
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            if file.readline().rstrip("\n") == header:
                return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + "\n", encoding="utf-8")


def append(path: Path, row: Row) -> None:
    """Add one row. A line that an earlier process left unfinished is ended first.

    Raises ValueError for NaN and infinity, which JSON does not have.
    """
    line = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                line = "\n" + line
        file.write(line.encode())


def read(path: Path) -> list[Row]:
    """All whole rows, in the order in which they were added; none where there is no file."""
    found: list[Row] = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # cut off as it was written
                continue
            if isinstance(row, dict) and "about" not in row:
                found.append(row)
    return found


def note(path: Path, piece: str, state: str) -> None:
    """Note that a piece has begun or ended."""
    append(path, {PIECE: piece, STATE: state})


def settled(path: Path) -> dict[str, bool]:
    """The pieces that are not to be begun again; true for those that ended."""
    rows = [row for row in read(path) if PIECE in row]
    ended = {row[PIECE] for row in rows if row[STATE] == ENDED}
    attempts = Counter(row[PIECE] for row in rows if row[STATE] == BEGUN)
    return {piece: piece in ended for piece, count in attempts.items() if piece in ended or count >= MOST_ATTEMPTS}


def measured(path: Path) -> list[Row]:
    """The rows of all pieces, each piece by its latest attempt, the rows of one that was cut off among them."""
    found: dict[str, list[Row]] = {}
    at = ""
    for row in read(path):
        if PIECE not in row:
            found.setdefault(at, []).append(row)
        elif row[STATE] == BEGUN:
            at = row[PIECE]
            found[at] = []
    return [row for rows in found.values() for row in rows]
