"""A plan as PowerPoint slides in 16:9: at most a table, a figure or a few lines on each, no text below 16 points."""

import io
import math
from typing import Any

import pptx
from pptx.dml.color import RGBColor
from pptx.enum.text import PP_ALIGN
from pptx.util import Inches, Pt

from threeloops.capstone.documents.formats.outline import Document, Picture, Slide, Table
from threeloops.figures import palette

__all__ = ["render"]

_FONT = "Arial"
_PAGE = (13.333, 7.5)
_LEFT = 0.7
_TOP = 1.55
_WIDTH = 11.93
_BOTTOM = 7.1
"""The slide's edges and the area below its title, in inches."""
_TITLE = 28
_TEXT = 20
"""Font sizes in points."""
_SIZES = (20, 18, 16)
"""Font sizes of tables: the largest that fits is taken."""
_PAD = 0.07
"""Inches above and below a cell's text."""
_CELL_LINES = 2
"""Lines of text in one cell. Longer text is cut at a word, and is complete in the notes or in the document."""
_EM = 0.5
"""Width of an average character, as a share of the font's size, in Arial."""
_TITLE_ONLY = 5
_FIRST = 0
"""Layouts of the library's template."""


def render(document: Document) -> bytes:
    deck = pptx.Presentation()
    deck.slide_width = Inches(_PAGE[0])
    deck.slide_height = Inches(_PAGE[1])
    properties = deck.core_properties
    properties.title = document.title
    properties.subject = document.subtitle
    properties.author = "threeloops plan"
    first = deck.slides.add_slide(deck.slide_layouts[_FIRST])
    _place(first.shapes.title, 2.2, 1.6)
    _say(first.shapes.title.text_frame, [document.title], 36, palette.blue, bold=True)
    below = first.placeholders[1]
    _place(below, 4.1, 1.6)
    _say(below.text_frame, [line for line in (document.subtitle, document.date) if line], _TEXT, palette.ink)
    for slide in document.slides:
        _add(deck, slide)
    buffer = io.BytesIO()
    deck.save(buffer)
    return buffer.getvalue()


def _add(deck: Any, slide: Slide) -> None:
    made = deck.slides.add_slide(deck.slide_layouts[_TITLE_ONLY])
    _place(made.shapes.title, 0.45, 0.95)
    _say(made.shapes.title.text_frame, [_shortened(slide.title, _WIDTH, _TITLE, 2)], _TITLE, palette.blue, bold=True)
    if slide.table:
        _add_table(made, slide.table)
    if slide.picture:
        _add_picture(made, slide.picture)
    if slide.lines:
        box = made.shapes.add_textbox(Inches(_LEFT), Inches(_TOP), Inches(_WIDTH), Inches(_BOTTOM - _TOP))
        box.text_frame.word_wrap = True
        _say(box.text_frame, list(slide.lines), _TEXT, palette.ink)
    if slide.notes:
        made.notes_slide.notes_text_frame.text = slide.notes


def _place(shape: Any, top: float, height: float) -> None:
    shape.left, shape.top, shape.width, shape.height = map(Inches, (_LEFT, top, _WIDTH, height))


def _say(frame: Any, lines: list[str], size: float, colour: str, bold: bool = False, right: bool = False) -> None:
    frame.word_wrap = True
    for number, line in enumerate(lines):
        paragraph = frame.paragraphs[0] if number == 0 else frame.add_paragraph()
        paragraph.alignment = PP_ALIGN.RIGHT if right else PP_ALIGN.LEFT
        if number:
            paragraph.space_before = Pt(size / 2)
        run = paragraph.add_run()
        run.text = line
        run.font.name = _FONT
        run.font.size = Pt(size)
        run.font.bold = bold
        run.font.color.rgb = RGBColor.from_string(colour[1:])


def _add_picture(made: Any, picture: Picture) -> None:
    room = _BOTTOM - _TOP
    width, height = picture.fitted(_WIDTH, room)
    left = (_PAGE[0] - width) / 2
    top = _TOP + (room - height) / 2
    shape = made.shapes.add_picture(io.BytesIO(picture.png), Inches(left), Inches(top), width=Inches(width))
    shape._element.nvPicPr.cNvPr.set("descr", picture.alt)
    shape.name = picture.name


def _add_table(made: Any, table: Table) -> None:
    size = next((points for points in _SIZES if _fits(table, points)), _SIZES[-1])
    heights = [_row_height(table, cells, size) for cells in (table.header, *table.rows)]
    place = (Inches(_LEFT), Inches(_TOP), Inches(_WIDTH), Inches(sum(heights)))
    shape = made.shapes.add_table(len(heights), len(table.header), *place)
    shape.name = table.caption
    grid = shape.table
    grid.horz_banding = False
    for column, share in enumerate(table.widths):
        grid.columns[column].width = Inches(_WIDTH * share)
    for number, cells in enumerate((table.header, *table.rows)):
        grid.rows[number].height = Inches(heights[number])
        for column, text in enumerate(cells):
            cell = grid.cell(number, column)
            cell.margin_top = cell.margin_bottom = Inches(_PAD)
            cell.fill.solid()
            cell.fill.fore_color.rgb = RGBColor.from_string("e8eef3" if number == 0 else "ffffff")
            bold = number == 0 or (table.total and number == len(table.rows))
            short = _shortened(str(text), _text_width(table, column), size, _CELL_LINES)
            _say(cell.text_frame, [short], size, palette.ink, bold, table.numeric(column))


def _text_width(table: Table, column: int) -> float:
    return _WIDTH * table.widths[column] - 0.2


def _cell_lines(table: Table, cells: Any, size: float) -> int:
    return max(_lines(str(text), _text_width(table, column), size) for column, text in enumerate(cells))


def _row_height(table: Table, cells: Any, size: float) -> float:
    return 2 * _PAD + 0.04 + min(_CELL_LINES, _cell_lines(table, cells, size)) * size * 1.2 / 72


def _fits(table: Table, size: float) -> bool:
    rows = (table.header, *table.rows)
    whole = all(_cell_lines(table, cells, size) <= _CELL_LINES for cells in rows)
    return whole and sum(_row_height(table, cells, size) for cells in rows) <= 0.9 * (_BOTTOM - _TOP)


def _lines(text: str, width: float, size: float) -> int:
    """Estimate how many lines a text takes in this many inches. Words that do not fit go to the next line."""
    most = _characters(width, size)
    lines = 1
    used = 0
    for word in text.split():
        if used and used + 1 + len(word) > most:
            lines += 1
            used = 0
        used += len(word) + bool(used)
        if used > most:
            lines += math.ceil(used / most) - 1
            used %= most
    return lines


def _characters(width: float, size: float) -> int:
    return max(1, int(width * 72 / (_EM * size)))


def _shortened(text: str, width: float, size: float, lines: int) -> str:
    if _lines(text, width, size) <= lines:
        return text
    words = text.split()
    while len(words) > 1 and _lines(" ".join(words) + " …", width, size) > lines:
        words.pop()
    shorter = " ".join(words)
    return shorter[: lines * _characters(width, size) - 2].rstrip(" ,;:") + " …"
