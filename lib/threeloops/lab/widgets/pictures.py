"""Show a figure or a table; each has a static form that needs no front end."""

import base64
import re
from collections.abc import Iterable, Sequence

from threeloops.lab.text.numeric import numbers
from threeloops.lab.text.plain import foreign
from threeloops.lab.text.wording import number
from threeloops.lab.widgets import cards, style
from threeloops.lab.widgets.display import publish

__all__ = ["figure", "table"]


_NUMBER = re.compile(r"[+−-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?")
"""A number that a lab has formatted itself."""


def figure(fig, caption: str = "") -> None:
    """Show a matplotlib figure once, in the colours of the page. Outside a notebook, print its titles."""
    text = caption or style.words(fig)
    data, size = still = style.png(fig)
    bundle = {"text/html": style.html(fig, text, still), "image/png": base64.b64encode(data).decode()}
    publish(text, bundle, {"image/png": size | {"alt": text}})


def table(rows: Iterable[Sequence], header: Sequence[str] = (), caption: str = "") -> None:
    """Rows of cells (numbers, tensors of one element, texts) under a header; columns of numbers are right-aligned."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = {len(row) for row in cells} | ({len(header)} if header else set())
    if len(widths) > 1:
        raise ValueError(f"table: rows and header have {sorted(widths)} cells; expected one number of columns")
    body = [[text for text, _ in row] for row in cells]
    numeric = [bool(cells) and all(row[i][1] for row in cells) for i in range(max(widths, default=0))]
    head = [str(title) for title in header]
    publish(_table_text(head, body, numeric, caption), {"text/html": _table_html(head, body, numeric, caption)})


def _cell(value: object) -> tuple[str, bool]:
    parsed = numbers(value) if foreign(value) is None else None
    if parsed is not None and not parsed.shape and parsed.kind in ("int", "float"):
        return number(parsed.array.item()), True
    return str(value), isinstance(value, str) and bool(_NUMBER.fullmatch(value))


def _table_html(header: list[str], rows: list[list[str]], numeric: list[bool], caption: str) -> str:
    line = "border-bottom:1px solid rgba(127,127,127,.35);padding:.25em .8em;text-align:"

    def row_html(tag: str, texts: list[str]) -> str:
        sides = ["right" if n else "left" for n in numeric]
        parts = (f'<{tag} style="{line}{s}">{_breakable(t)}</{tag}>' for s, t in zip(sides, texts, strict=True))
        return f"<tr>{''.join(parts)}</tr>"

    head = f"<thead>{row_html('th', header)}</thead>" if header else ""
    body = "".join(row_html("td", row) for row in rows)
    title = f'<caption style="text-align:left;color:inherit">{cards.inline(caption)}</caption>' if caption else ""
    form = "border-collapse:collapse;margin:.4em 0;font-variant-numeric:tabular-nums"
    return f'<table style="{form}">{title}{head}<tbody>{body}</tbody></table>'


def _breakable(text: str) -> str:
    """A cell whose long names may break after an underscore, so that a table fits a narrow window."""
    return cards.inline(text).replace("_", "_<wbr>")


def _table_text(header: list[str], rows: list[list[str]], numeric: list[bool], caption: str) -> str:
    rows = [header, *rows] if header else rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if header:
        rows.insert(1, ["-" * width for width in widths])
    sides = [">" if n else "<" for n in numeric]
    lines = ["  ".join(f"{t:{s}{w}}" for t, s, w in zip(row, sides, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(([caption] if caption else []) + lines)
