"""The outline of a document, independent of its appearance: sections of paragraphs, tables and pictures, and slides.

Every format renders the same outline, so they cannot disagree.
"""

import re
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from threeloops.capstone.plan import Quantity
from threeloops.units import readable

__all__ = ["Block", "Cell", "Document", "Number", "Paragraph", "Picture", "Section", "Slide", "Table", "cleaned"]

_T = TypeVar("_T")
_NOT_TEXT = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Number:
    """A cell that a workbook computes with, and that other formats print. `quantity` is the name of the quantity whose
    value it is: a workbook refers to that one's cell."""

    value: float
    unit: str
    quantity: str = ""

    def __str__(self) -> str:
        return readable(self.value, self.unit)


Cell = str | Number


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Table:
    """`widths` are the columns' shares of the page. A column is aligned to the right if each of its cells is a number
    (or a dash, for none)."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    widths: tuple[float, ...]
    total: bool = False
    """Whether the last row is the sum of those above it."""

    def __post_init__(self) -> None:
        if len(self.widths) != len(self.header) or abs(sum(self.widths) - 1) > 1e-9:
            raise ValueError(f"{self.caption}: widths = {self.widths}: expected {len(self.header)} shares, together 1")
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"{self.caption}: a row has {len(row)} cells, expected {len(self.header)}: {row}")

    def lines(self, characters: int) -> int:
        """Estimate how many lines its rows take if a line of the page has this many characters."""
        shares = [max(1, int(characters * width)) for width in self.widths]
        return sum(
            max(-(-len(str(cell)) // share) for cell, share in zip(row, shares, strict=True)) for row in self.rows
        )

    def numeric(self, column: int) -> bool:
        return bool(self.rows) and all(isinstance(row[column], Number) or row[column] == "–" for row in self.rows)


@dataclass(frozen=True)
class Picture:
    """A figure as PNG, with its content in words. `width` and `height` are in pixels."""

    name: str
    title: str
    alt: str
    png: bytes
    width: int
    height: int

    def fitted(self, width: float, height: float) -> tuple[float, float]:
        """Return the largest width and height of the picture within this width and height."""
        fitted = min(width, height * self.width / self.height)
        return fitted, fitted * self.height / self.width


Block = Paragraph | Table | Picture


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Slide:
    """One idea: lines, a table or a picture, or a picture with lines below it. `notes` are the speaker's."""

    title: str
    lines: tuple[str, ...] = ()
    table: Table | None = None
    picture: Picture | None = None
    notes: str = ""


@dataclass(frozen=True)
class Document:
    title: str
    subtitle: str
    date: str
    """The date as printed, or "" for none."""
    sections: tuple[Section, ...]
    slides: tuple[Slide, ...]
    quantities: tuple[Quantity, ...]
    """The quantities that a workbook calculates."""


def cleaned(outline: _T) -> _T:
    """The same without characters that XML, and so Word, Excel and PowerPoint, cannot hold: each becomes a space."""
    clean: Any = outline
    if isinstance(outline, str):
        clean = _NOT_TEXT.sub(" ", outline)
    elif isinstance(outline, tuple):
        clean = tuple(map(cleaned, outline))
    elif is_dataclass(outline) and not isinstance(outline, type):
        clean = replace(outline, **{field.name: cleaned(getattr(outline, field.name)) for field in fields(outline)})
    return clean
