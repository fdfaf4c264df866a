"""Many rows as a table for people: a line for all rows of one name, its numbers as the span of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

Row = Mapping[str, Any]
Cells = Callable[[Sequence[Any]], tuple[str, ...]]


def summary_table(
    title: str, names: tuple[str, ...], columns: tuple[str, ...], cells: Cells, rows: Iterable[Row]
) -> Table:
    """A line of cells for all rows that agree in `names`; what a line repeats of the one before is left out."""
    made = Table(title=title, title_justify="left", box=None)
    for name in names:
        made.add_column(name, overflow="fold")
    for name in ("cases", *columns):
        made.add_column(name, justify="right")
    before: tuple[str, ...] = ()
    for about, group in grouped(rows, names).items():
        shown = tuple(now if before[: place + 1] != about[: place + 1] else "" for place, now in enumerate(about))
        made.add_row(*shown, str(len(group)), *cells(group))
        before = about
    return made


def grouped(rows: Iterable[Row], names: tuple[str, ...]) -> dict[tuple[str, ...], list[Row]]:
    """Rows by what they say under `names`, in the order of their first; "" where a row says nothing."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(str(row.get(name, "")) for name in names), []).append(row)
    return found


def span(values: Iterable[float], form: Callable[[float], str]) -> str:
    """The least and the largest of some numbers, once where they read the same."""
    known = list(values)
    if not known:
        return ""
    low, high = form(min(known)), form(max(known))
    return low if low == high else f"{low} … {high}"
