"""A plan as a Word document: A4, real headings, header rows that repeat, figures with alternative texts."""

import io
from typing import Any

import docx
from docx.enum.table import WD_TABLE_ALIGNMENT
from docx.enum.text import WD_ALIGN_PARAGRAPH
from docx.oxml import OxmlElement
from docx.oxml.ns import qn
from docx.shared import Cm, Pt, RGBColor

from threeloops.capstone.documents.formats.outline import Block, Document, Paragraph, Picture, Table
from threeloops.figures import palette

__all__ = ["render"]

_FONT = "Arial"
_WIDTH = 17.0
_TALLEST = 20.0
"""Centimetres of the text, and of the tallest picture."""
_HEADER_FILL = "e8eef3"
_RULE = "b8c4cc"
_CHARACTERS = 105
_LINES_TOGETHER = 12
"""Characters in a line of a table, and the most lines of a table that is kept on one page."""
_TEXT_POINTS = 10.5
_TABLE_POINTS = 9


def render(document: Document) -> bytes:
    made = docx.Document()
    _set_page(made, document)
    made.add_paragraph(document.title, style="Title")
    if document.date:
        made.add_paragraph(document.date, style="Subtitle")
    for section in document.sections:
        made.add_heading(section.title, 1)
        for block in section.blocks:
            _add(made, block)
            if isinstance(block, Paragraph) and block is not section.blocks[-1]:
                made.paragraphs[-1].paragraph_format.keep_with_next = True
    if isinstance(document.sections[-1].blocks[-1], Table):
        made.add_paragraph()  # a body that ends in a table is not valid
    buffer = io.BytesIO()
    made.save(buffer)
    return buffer.getvalue()


def _set_page(made: Any, document: Document) -> None:
    page = made.sections[0]
    page.page_width = Cm(21)
    page.page_height = Cm(29.7)
    page.left_margin = page.right_margin = page.top_margin = page.bottom_margin = Cm(2)
    for name, size, colour in (
        ("Normal", _TEXT_POINTS, palette.ink),
        ("Title", 22, palette.blue),
        ("Subtitle", 12, palette.ink),
        ("Heading 1", 15, palette.blue),
        ("Caption", 9.5, palette.ink),
    ):
        style = made.styles[name]
        style.font.name = _FONT
        style.font.size = Pt(size)
        style.font.italic = False
        style.font.color.rgb = RGBColor.from_string(colour[1:])
        fonts = style.element.get_or_add_rPr().get_or_add_rFonts()
        for theme in ("asciiTheme", "hAnsiTheme", "eastAsiaTheme", "cstheme"):
            fonts.attrib.pop(qn(f"w:{theme}"), None)  # a theme's font would win over ours
    made.styles["Caption"].paragraph_format.space_before = Pt(8)
    made.styles["Caption"].paragraph_format.space_after = Pt(4)
    made.styles["Normal"].paragraph_format.space_after = Pt(6)
    properties = made.core_properties
    properties.title = document.title
    properties.subject = document.subtitle
    properties.author = "threeloops plan"
    properties.comments = ""
    properties.language = "en"
    foot = page.footer.paragraphs[0]
    foot.alignment = WD_ALIGN_PARAGRAPH.RIGHT
    for kind, text in (("begin", None), (None, "PAGE"), ("end", None)):
        element = OxmlElement("w:fldChar" if kind else "w:instrText")
        if kind:
            element.set(qn("w:fldCharType"), kind)
        else:
            element.text = text
        foot.add_run()._r.append(element)


def _add(made: Any, block: Block) -> None:
    match block:
        case Paragraph(text=text):
            made.add_paragraph(text)
        case Picture():
            _add_picture(made, block)
        case Table():
            caption = made.add_paragraph(block.caption, style="Caption")
            caption.paragraph_format.keep_with_next = True
            _add_table(made, block)


def _add_picture(made: Any, picture: Picture) -> None:
    width, _ = picture.fitted(_WIDTH, _TALLEST)
    paragraph = made.add_paragraph()
    shape = paragraph.add_run().add_picture(io.BytesIO(picture.png), width=Cm(width))
    shape._inline.docPr.set("descr", picture.alt)
    shape._inline.docPr.set("name", picture.name)
    paragraph.paragraph_format.keep_with_next = True
    paragraph.paragraph_format.space_before = Pt(10)
    caption = made.add_paragraph(f"{picture.title}. ", style="Caption")
    caption.paragraph_format.space_before = Pt(0)
    caption.add_run(picture.alt).bold = False


def _add_table(made: Any, table: Table) -> None:
    grid = made.add_table(rows=0, cols=len(table.header))
    grid.alignment = WD_TABLE_ALIGNMENT.LEFT
    grid.autofit = False
    _frame(grid)
    for column, share in zip(grid.columns, table.widths, strict=True):
        column.width = Cm(_WIDTH * share)
    last = len(table.rows) - 1
    whole = table.lines(_CHARACTERS) <= _LINES_TOGETHER
    for number, cells in enumerate([table.header, *table.rows], -1):
        row = grid.add_row()
        properties = row._tr.get_or_add_trPr()
        properties.append(OxmlElement("w:cantSplit"))
        if number < 0:
            properties.append(OxmlElement("w:tblHeader"))
        for column, cell in enumerate(cells):
            bold = number < 0 or (table.total and number == last)
            _fill(row.cells[column], str(cell), bold, table.numeric(column), header=number < 0)
            row.cells[column].width = Cm(_WIDTH * table.widths[column])
            # No row stands alone at the end of a page, or below a header that repeats.
            keep = number != last and (whole or number in (-1, 0, last - 1))
            row.cells[column].paragraphs[0].paragraph_format.keep_with_next = keep


def _fill(cell: Any, text: str, bold: bool, right: bool, header: bool) -> None:
    paragraph = cell.paragraphs[0]
    run = paragraph.add_run(text)
    run.font.size = Pt(_TABLE_POINTS)
    run.bold = bold
    paragraph.paragraph_format.space_after = Pt(0)
    if right:
        paragraph.alignment = WD_ALIGN_PARAGRAPH.RIGHT
    if header:
        shade = OxmlElement("w:shd")
        shade.set(qn("w:val"), "clear")
        shade.set(qn("w:fill"), _HEADER_FILL)
        cell._tc.get_or_add_tcPr().append(shade)


def _frame(table: Any) -> None:
    """Thin horizontal rules, and room around the text."""
    properties = table._tbl.tblPr
    borders = OxmlElement("w:tblBorders")
    margins = OxmlElement("w:tblCellMar")
    for side in ("top", "bottom", "insideH"):
        rule = OxmlElement(f"w:{side}")
        for key, value in (("val", "single"), ("sz", "4"), ("color", _RULE)):
            rule.set(qn(f"w:{key}"), value)
        borders.append(rule)
    for side, twips in (("top", 40), ("left", 80), ("bottom", 40), ("right", 80)):
        margin = OxmlElement(f"w:{side}")
        margin.set(qn("w:w"), str(twips))
        margin.set(qn("w:type"), "dxa")
        margins.append(margin)
    indent = OxmlElement("w:tblInd")  # so that the rules, and not the text, begin at the page's margin
    indent.set(qn("w:w"), "80")
    indent.set(qn("w:type"), "dxa")
    layout = properties.find(qn("w:tblLayout"))
    layout.addprevious(indent)  # the schema's order: indent, borders, layout, margins
    layout.addprevious(borders)
    layout.addnext(margins)
