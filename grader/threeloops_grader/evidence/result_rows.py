"""Rows of a measurement in a file of JSON lines, each on disk as soon as it is known.

If the measuring process is killed, only the row that it was computing is lost, and the next process continues from
there. A measurement that consists of pieces notes where each piece begins and ends, so an interrupted piece is measured
again.
"""

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["BEGUN", "ENDED", "MOST_ATTEMPTS", "Row", "append", "begin", "measured", "note", "read", "settled"]

Row = dict[str, Any]
_PIECE = "piece"
_STATE = "state"
BEGUN = "begun"
ENDED = "ended"
MOST_ATTEMPTS = 2
"""A piece that was begun this often and never ended hangs or crashes its process; it is not begun again."""


def begin(path: Path, about: str) -> None:
    """Prepare `path` for rows that hold for `about`: rows of something else are dropped, its own are kept."""
    header = json.dumps({"about": about}, ensure_ascii=False)
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            if file.readline().rstrip("\n") == header:
                return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + "\n", encoding="utf-8")


def append(path: Path, row: Row) -> None:
    """Add one row, after ending a line that an earlier process left unfinished.

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
    """Return all complete rows, in the order in which they were added, or none if there is no file."""
    rows: list[Row] = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):  # a line that was cut off while it was written
                row = json.loads(line)
                if isinstance(row, dict) and "about" not in row:
                    rows.append(row)
    return rows


def note(path: Path, piece: str, state: str) -> None:
    """Note that a piece has begun or ended."""
    append(path, {_PIECE: piece, _STATE: state})


def settled(path: Path) -> dict[str, bool]:
    """Return the pieces that must not be begun again, with True for those that ended."""
    rows = [row for row in read(path) if _PIECE in row]
    ended = {row[_PIECE] for row in rows if row[_STATE] == ENDED}
    attempts = Counter(row[_PIECE] for row in rows if row[_STATE] == BEGUN)
    return {piece: piece in ended for piece, count in attempts.items() if piece in ended or count >= MOST_ATTEMPTS}


def measured(path: Path) -> list[Row]:
    """Return the rows of the latest attempt at each piece, including the rows of an interrupted piece."""
    by_piece: dict[str, list[Row]] = {}
    at = ""
    for row in read(path):
        if _PIECE not in row:
            by_piece.setdefault(at, []).append(row)
        elif row[_STATE] == BEGUN:
            at = row[_PIECE]
            by_piece[at] = []
    return [row for rows in by_piece.values() for row in rows]
