"""A plan as PDF: A4, bookmarks, header rows that repeat, figures with alternative texts."""

import io
from functools import cache
from pathlib import Path

from fpdf import FPDF
from fpdf.enums import TableBordersLayout, XPos, YPos
from fpdf.fonts import FontFace

from threeloops.capstone.documents.formats.outline import Block, Document, Paragraph, Picture, Table
from threeloops.figures import palette

__all__ = ["render"]

_FONT = "DejaVu Sans"
_MARGIN = 18.0
_WIDTH = 174.0
_TALLEST = 221.0
"""Millimetres of the margins, of the text, and of the tallest picture."""
_TEXT = 9.5
_TABLE = 8.0
_SMALL = 8.5
"""Font sizes in points."""
_CHARACTERS = 95
_LINES_TOGETHER = 12
"""Characters in a line of a table, and the most lines of a table that is kept on one page."""
_HEADER_FILL = (232, 238, 243)
_RULE = (184, 196, 204)
_LINE = 0.5
"""Millimetres of a line per point of its font."""


class _Page(FPDF):
    def footer(self) -> None:
        self.set_y(-13)
        self.set_font(_FONT, size=_SMALL)
        self.cell(0, 5, f"{self.page_no()}", align="R")


def render(document: Document) -> bytes:
    page = _Page(format="A4")
    page.set_margins(_MARGIN, _MARGIN, _MARGIN)
    page.set_auto_page_break(True, margin=_MARGIN)
    for style, name in (("", "DejaVuSans"), ("B", "DejaVuSans-Bold")):
        page.add_font(_FONT, style, _fonts() / f"{name}.ttf")
    page.set_title(document.title)
    page.set_subject(document.subtitle)
    page.set_creator("threeloops plan")
    page.set_lang("en")
    page.set_draw_color(*_RULE)
    page.add_page()
    _write(page, document.title, 19, "B", palette.blue)
    if document.date:
        _write(page, document.date, 11)
    for section in document.sections:
        _heading(page, section.title, section.blocks)
        for block in section.blocks:
            _add(page, block)
    return bytes(page.output())


@cache
def _fonts() -> Path:
    """matplotlib brings a font that has every sign of a plan: arrows, a minus, Greek."""
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts/ttf"


def _write(page: FPDF, text: str, size: float, style: str = "", colour: str = palette.ink) -> None:
    page.set_font(_FONT, style, size)
    page.set_text_color(colour)
    page.multi_cell(0, size * _LINE, text, align="L", new_x=XPos.LMARGIN, new_y=YPos.NEXT)
    page.ln(size * 0.15)


def _heading(page: FPDF, title: str, blocks: tuple[Block, ...]) -> None:
    """Write a heading, on the next page if the section's first block would not fit on this one."""
    needed = 20.0
    for block in blocks[:2]:  # an introduction stays with what it introduces
        needed += 15 if isinstance(block, Paragraph) else _room(block)
        if not isinstance(block, Paragraph):
            break
    if page.will_page_break(needed) and page.get_y() > _MARGIN:
        page.add_page()
    else:
        page.ln(3)
    page.set_text_color(palette.blue)
    page.start_section(title)
    _write(page, title, 13, "B", palette.blue)


def _add(page: FPDF, block: Block) -> None:
    match block:
        case Paragraph(text=text):
            _write(page, text, _TEXT)
        case Picture():
            width, height = block.fitted(_WIDTH, _TALLEST)
            if page.will_page_break(_room(block)):
                page.add_page()
            page.image(io.BytesIO(block.png), w=width, h=height, alt_text=block.alt)
            _write(page, block.title, _SMALL, "B")
            _write(page, block.alt, _SMALL)
            page.ln(2)
        case Table():
            if page.will_page_break(_room(block)):
                page.add_page()
            _write(page, block.caption, _SMALL, "B")
            _table(page, block)
            page.ln(4)


def _room(block: Table | Picture) -> float:
    """Millimetres that have to be free on the page: for a picture with its caption, a short table, or the first rows of
    a long one."""
    if isinstance(block, Picture):
        return block.fitted(_WIDTH, _TALLEST)[1] + 15
    lines = block.lines(_CHARACTERS)
    return 15 + 4.5 * lines + 1.4 * len(block.rows) if lines <= _LINES_TOGETHER else 35


def _table(page: FPDF, table: Table) -> None:
    page.set_font(_FONT, "", _TABLE)
    page.set_text_color(palette.ink)
    align = tuple("RIGHT" if table.numeric(column) else "LEFT" for column in range(len(table.header)))
    bold = FontFace(emphasis="BOLD")
    with page.table(
        width=_WIDTH,
        col_widths=table.widths,
        text_align=align,
        headings_style=FontFace(emphasis="BOLD", fill_color=_HEADER_FILL),
        borders_layout=TableBordersLayout.HORIZONTAL_LINES,
        line_height=_TABLE * _LINE,
        padding=(0.7, 1.2),
        v_align="TOP",
    ) as drawn:
        for number, cells in enumerate([table.header, *table.rows]):
            row = drawn.row()
            for cell in cells:
                row.cell(str(cell), style=bold if table.total and number == len(table.rows) else None)
