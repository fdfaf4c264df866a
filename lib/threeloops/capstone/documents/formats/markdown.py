"""A plan as Markdown with GitHub's tables; figures are files beside it."""

import re

from threeloops.capstone.documents.formats.outline import Block, Cell, Document, Paragraph, Picture, Table

__all__ = ["render"]


def render(document: Document) -> bytes:
    parts = [f"# {_text(document.title)}", *([f"*{_text(document.date)}*"] if document.date else [])]
    for section in document.sections:
        parts += [f"## {_text(section.title)}", *(_block(block) for block in section.blocks)]
    return ("\n\n".join(parts) + "\n").encode()


def _block(block: Block) -> str:
    match block:
        case Paragraph(text=text):
            return _text(text)
        case Picture():
            return f"![{_text(block.alt)}](plan-{block.name}.png)\n\n**{_text(block.title)}.** {_text(block.alt)}"
        case Table():
            return f"**{_text(block.caption)}**\n\n" + _table(block)


def _table(table: Table) -> str:
    rule = ["--:" if table.numeric(column) else "---" for column in range(len(table.header))]
    rows = [_row(cells) for cells in table.rows]
    if table.total:
        rows[-1] = _row([f"**{_text(str(cell))}**" for cell in table.rows[-1]], escape=False)
    return "\n".join([_row(table.header), _row(rule, escape=False), *rows])


def _row(cells: "tuple[Cell, ...] | list[str] | tuple[str, ...]", escape: bool = True) -> str:
    return "| " + " | ".join(_text(str(cell)) if escape else str(cell) for cell in cells) + " |"


def _text(text: str) -> str:
    """Put text on one line and escape it, so that none of it is markup."""
    return re.sub(r"([\\`*\[\]<>|~#&$]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(text.split()))
