"""Many rows as a table for people: a line for all rows of one name, its numbers as the span of theirs.

Tables are read in terminals of 80 columns, in pipes and in logs, so no word and no number is broken: what several lines
are about stands above them, and where the numbers do not fit side by side they follow their names, line by line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]
Cells = Callable[[Sequence[Any]], tuple[str, ...]]

NARROWEST = 24
"""Columns that the first words of a line need; below it the numbers go under them."""
GAP, INDENT = 2, 2


@dataclass
class Lines:
    """A table as it fits: `rows` hold what is above the line, the line's own first words, and its cells."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.title, style="italic")
        cells = [self.columns, *(cells for _, _, cells in self.rows)]
        widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
        left = options.max_width - sum(widths) - GAP * len(widths)
        words = [words for _, words, _ in self.rows]
        if left >= max([NARROWEST, *(cell_len(word) + INDENT for each in words for word in each.split())]):
            longest = max((cell_len(each) + INDENT for each in words), default=0)
            yield from self._side_by_side([min(left, max(longest, NARROWEST)), *widths])
        else:
            yield from self._line_by_line(options.max_width)

    def _side_by_side(self, widths: list[int]) -> Iterator[Table | Text]:
        yield _line(widths, ("", *self.columns), "bold")
        for above, words, cells in _headed(self.rows):
            if above:
                yield Text(above, style="bold")
            yield _line(widths, (words, *cells))

    def _line_by_line(self, width: int) -> Iterator[Text]:
        for above, words, cells in _headed(self.rows):
            if above:
                yield Text(above, style="bold")
            yield Text(" " * INDENT + words)
            named = [f"{name}: {cell}" for name, cell in zip(self.columns, cells, strict=True) if cell]
            yield from (Text(" " * 2 * INDENT + line) for line in _filled(named, width - 2 * INDENT))


def _headed(rows: Iterable[tuple[str, str, tuple[str, ...]]]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The rows, with what they repeat of the row before left out."""
    before = ""
    for above, words, cells in rows:
        yield (above if above != before else ""), words, cells
        before = above


def _line(widths: Sequence[int], cells: Sequence[str], style: str = "") -> Table:
    line = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
    line.add_column(width=widths[0])
    for width in widths[1:]:
        line.add_column(width=width, justify="right", no_wrap=True)
    line.add_row(Padding(cells[0], (0, 0, 0, INDENT)), *cells[1:], style=style)
    return line


def _filled(parts: Iterable[str], width: int) -> Iterator[str]:
    """Lines of at most `width` columns with as many whole parts as fit; a part that is longer has a line of its own."""
    line = ""
    for part in parts:
        longer = f"{line}   {part}" if line else part
        if line and cell_len(longer) > width:
            yield line
            longer = part
        line = longer
    if line:
        yield line


def summary_table(
    title: str, names: tuple[str, ...], columns: tuple[str, ...], cells: Cells, rows: Iterable[Row]
) -> Lines:
    """A line of cells for all rows that agree in `names`; all names but the last stand above the lines that share
    them."""
    made = Lines(title, ("cases", *columns))
    for about, group in grouped(rows, names).items():
        made.rows.append((" · ".join(filter(None, about[:-1])), about[-1], (str(len(group)), *cells(group))))
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
