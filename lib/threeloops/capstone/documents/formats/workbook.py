"""A plan as an Excel workbook that calculates: inputs with names, formulas over them, and tables that refer to both.

Each formula is stored with its value in the plan, which a viewer shows if it cannot calculate. Excel and LibreOffice
calculate again when a cell changes.
"""

import ast
import io
import math
import re
from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import xlsxwriter

from threeloops.capstone.documents.formats.outline import Cell, Document, Number, Paragraph, Picture, Section, Table
from threeloops.capstone.plan import Quantity
from threeloops.figures import palette

__all__ = ["render"]

_PICTURE_PIXELS = 620
_ROWS_PER_PAGE = 46
_WIDTH = 110
"""Characters of a page in landscape, which the columns of a table share."""
_CHOSEN = "#fff8d6"
_COMPUTED = "#eeeeee"
_NOT_A_NAME = re.compile(r"[a-z]{1,3}\d+|r\d*(c\d*)?|c\d*|true|false", re.IGNORECASE)
"""Names that a spreadsheet would take for a cell, a row, a column or a constant."""
_INPUTS_NOTE = (
    "Change a yellow cell, and costs follow. Grey cells hold what a model of the library computed: "
    "they do not follow, and a new plan computes them."
)
_CALCULATION_NOTE = "Each row follows from named cells, here and on the sheet Inputs."
_FIXED_NOTE = "The figures, options and sensitivities are those of the plan as it was written."


def render(document: Document) -> bytes:
    buffer = io.BytesIO()
    with xlsxwriter.Workbook(buffer, {"in_memory": True}) as book:
        _Writer(book, document).write()
    return buffer.getvalue()


class _Writer:
    """Sheets are filled from top to bottom: `row` is the next free row of `sheet`."""

    def __init__(self, book: Any, document: Document) -> None:
        self.book = book
        self.document = document
        self.sheet: Any = None
        self.row = 0
        self.widths: list[float] = []
        self.formats: dict[tuple, Any] = {}
        self.quantities = {quantity.name: quantity for quantity in document.quantities}

    def write(self) -> None:
        title = self.document.title[:255]
        subject = self.document.subtitle[:255]
        self.book.set_properties({"title": title, "subject": subject, "author": "threeloops plan"})
        self.book.set_calc_mode("auto")
        first, *others = self.document.sections
        self._section(first)
        self._inputs([quantity for quantity in self.document.quantities if not quantity.formula])
        self._calculation([quantity for quantity in self.document.quantities if quantity.formula])
        for section in others:
            if any(isinstance(block, Table) for block in section.blocks) and "all quantities" not in section.title:
                self._section(section)
        pictures = [b for section in self.document.sections for b in section.blocks if isinstance(b, Picture)]
        if pictures:
            self._pictures(pictures)

    def _style(self, **how: Any) -> Any:
        """Return one format object for each look, since a workbook holds only a limited number."""
        key = tuple(sorted(how.items()))
        if key not in self.formats:
            base = {"font_name": "Arial", "font_size": 10, "font_color": palette.ink, "valign": "vcenter"}
            self.formats[key] = self.book.add_format(base | how)
        return self.formats[key]

    def _start(self, name: str, title: str, notes: tuple[str, ...] = ()) -> None:
        self.sheet = self.book.add_worksheet(name[:31])
        self.row = 0
        self.sheet.set_landscape()
        self.sheet.set_paper(9)  # A4
        self.sheet.fit_to_pages(1, 0)
        self.sheet.set_footer("&L&A&R&P")
        self.sheet.hide_gridlines(2)
        self._line(title, bold=True, font_size=14, font_color=palette.blue)
        for note in notes:
            self._line(note)
        self.row += 1

    def _line(self, text: str, **how: Any) -> None:
        self.sheet.write_string(self.row, 0, text, self._style(**how))
        self.row += 1

    def _columns(self, shares: tuple[float, ...]) -> None:
        self.widths = [max(11.0, _WIDTH * share) for share in shares]
        for column, width in enumerate(self.widths):
            self.sheet.set_column(column, column, width)

    def _end_row(self, cells: Sequence[Cell], last: int | None = None) -> None:
        """Make the row as high as its longest text needs: not every program does so when it opens a file.

        Column `last` is merged with those after it.
        """
        widths = self.widths if last is None else [*self.widths[:last], sum(self.widths[last:])]
        shown = zip(cells, widths, strict=False)
        lines = max(max(1, len(wrap(str(cell), max(1, int(1.25 * width))))) for cell, width in shown)
        self.sheet.set_row(self.row, 5 + 13 * lines)
        self.row += 1

    def _header(self, names: tuple[str, ...], right: tuple[bool, ...]) -> None:
        last = len(names) - 1
        for column, name in enumerate(names):
            how = {"bold": True, "bg_color": "#e8eef3", "bottom": 1, "text_wrap": True, **_aligned(right[column])}
            style = self._style(**how)
            if column == last < len(self.widths) - 1:
                self.sheet.merge_range(self.row, column, self.row, len(self.widths) - 1, "", style)
            self.sheet.write_string(self.row, column, name, style)
        self._end_row(names, last)

    def _section(self, section: Section) -> None:
        name = section.title.removeprefix("Appendix A: ").capitalize()
        notes = tuple(block.text for block in section.blocks if isinstance(block, Paragraph))
        first = self.document.title if section is self.document.sections[0] else section.title
        dated = (self.document.date,) if first == self.document.title and self.document.date else ()
        self._start(name, first, (*dated, *notes))
        tables = [block for block in section.blocks if isinstance(block, Table)]
        widest = max(tables, key=lambda table: len(table.header))
        self._columns(widest.widths)
        for table in tables:
            self._table(table)
        if len(tables) == 1:
            self.sheet.repeat_rows(self.row - len(tables[0].rows) - 2)

    def _table(self, table: Table) -> None:
        """Write a table. Its last column takes the width that wider tables of the sheet leave."""
        self._line(table.caption, bold=True)
        right = tuple(table.numeric(column) for column in range(len(table.header)))
        self._header(table.header, right)
        last = len(table.header) - 1
        for number, cells in enumerate(table.rows):
            total = table.total and number == len(table.rows) - 1
            for column, cell in enumerate(cells):
                how = {"bold": total, "top": int(total), "text_wrap": True, **_aligned(right[column])}
                if isinstance(cell, Number):
                    how["num_format"] = _number_format(cell.unit, cell.value)
                style = self._style(**how)
                if column == last and last < len(self.widths) - 1:
                    self.sheet.merge_range(self.row, column, self.row, len(self.widths) - 1, "", style)
                self._cell(column, cell, style)
            self._end_row(cells, last)
        self.row += 1

    def _cell(self, column: int, cell: Cell, style: Any) -> None:
        if not isinstance(cell, Number):
            self.sheet.write_string(self.row, column, cell, style)
        elif cell.quantity in self.quantities:
            self.sheet.write_formula(self.row, column, f"={_name(cell.quantity)}", style, cell.value)
        else:
            self.sheet.write_number(self.row, column, cell.value, style)

    def _inputs(self, quantities: list[Quantity]) -> None:
        widths = (0.28, 0.16, 0.1, 0.1, 0.36, 0.22)
        self._start_quantities("Inputs", _INPUTS_NOTE, widths, ("Evidence", "Source"))
        for quantity in quantities:
            chosen = quantity.evidence != "model"
            style = self._style(
                num_format=_number_format(quantity.unit, quantity.value),
                bg_color=_CHOSEN if chosen else _COMPUTED,
                align="right",
                border=1,
            )
            self.sheet.write_number(self.row, 1, quantity.value, style)
            if chosen and quantity.value >= 0:
                wrong = {"input_title": quantity.label[:32], "error_title": "Not a number", "error_message": _REFUSED}
                rule = {"validate": "decimal", "criteria": ">=", "value": 0}
                self.sheet.data_validation(self.row, 1, self.row, 1, rule | wrong)
            self._describe(quantity, "Inputs", (quantity.evidence, quantity.source))

    def _calculation(self, quantities: list[Quantity]) -> None:
        if not quantities:
            return
        self._start_quantities("Calculation", _CALCULATION_NOTE, (0.3, 0.16, 0.1, 0.44, 0.22), ("Formula",))
        for quantity in quantities:
            style = self._style(num_format=_number_format(quantity.unit, quantity.value), align="right")
            self.sheet.write_formula(self.row, 1, f"={_formula(quantity.formula)}", style, quantity.value)
            self._describe(quantity, "Calculation", (quantity.formula,))

    def _start_quantities(self, name: str, note: str, widths: tuple[float, ...], texts: tuple[str, ...]) -> None:
        """Start a sheet of quantities, with a header that stays visible. `texts` are the columns beside the values."""
        self._start(name, name, (note,))
        self._columns(widths)
        columns = ("Quantity", "Value", "Unit", *texts, "Name")
        self._header(columns, tuple(column == "Value" for column in columns))
        self.sheet.freeze_panes(self.row, 0)
        self.sheet.repeat_rows(self.row - 1)

    def _describe(self, quantity: Quantity, sheet: str, texts: tuple[str, ...]) -> None:
        """Write the texts beside a quantity's value, and the name of the cell."""
        wrapped = self._style(text_wrap=True, **_aligned(False))
        self.book.define_name(_name(quantity.name), f"={sheet}!$B${self.row + 1}")
        self.sheet.write_string(self.row, 0, quantity.label, wrapped)
        beside = (quantity.unit, *texts, _name(quantity.name))
        for column, text in enumerate(beside, 2):
            self.sheet.write_string(self.row, column, text, wrapped)
        self._end_row((quantity.label, "", *beside))

    def _pictures(self, pictures: list[Picture]) -> None:
        self._start("Figures", "Figures", (_FIXED_NOTE,))
        self.sheet.set_portrait()
        self.sheet.set_print_scale(100)
        self.sheet.set_column(0, 0, 88)
        breaks = []
        page = 0
        for picture in pictures:
            scale = _PICTURE_PIXELS / picture.width
            rows = math.ceil(picture.height * scale / 20) + 3
            if self.row + rows - page > _ROWS_PER_PAGE:
                breaks.append(self.row)
                page = self.row
            self._line(picture.title, bold=True)
            how = {"x_scale": scale * 200 / 96, "y_scale": scale * 200 / 96, "description": picture.alt}
            self.sheet.insert_image(self.row, 0, f"{picture.name}.png", {"image_data": io.BytesIO(picture.png)} | how)
            self.row += rows - 1
        self.sheet.set_h_pagebreaks(breaks)


_REFUSED = "Expected a number that is not negative, in the unit of this row."


def _number_format(unit: str, value: float) -> str:
    """Four digits, and all that stand before the point; of money at least the cents."""
    if unit.partition("/")[0] == "share":
        return "0.0%"
    size = math.floor(math.log10(abs(value))) if value else 0
    places = 0 if value == int(value) else min(9, max(0, 3 - size))
    money = unit.partition("/")[0] == "USD"
    places = max(places, 2) if money else places
    return ("$" if money else "") + "#,##0" + ("." + "0" * places if places else "")


def _aligned(right: bool) -> dict[str, Any]:
    return {"align": "right"} if right else {"align": "left", "indent": 1}


def _name(quantity: str) -> str:
    """Return the quantity's name, changed if a spreadsheet would take it for a cell."""
    return f"{quantity}_" if _NOT_A_NAME.fullmatch(quantity) else quantity


class _Renamed(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(_name(node.id))


def _formula(formula: str) -> str:
    """The same arithmetic over the cells' names."""
    return ast.unparse(_Renamed().visit(ast.parse(formula, mode="eval")))
