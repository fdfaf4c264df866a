"""Show a figure, a table, or a measurement beside its prediction; each has a static form that needs no front end."""

import base64
import textwrap
from collections.abc import Iterable, Sequence

from threeloops.lab.text.numeric import numbers
from threeloops.lab.text.plain import foreign
from threeloops.lab.text.wording import number, with_unit
from threeloops.lab.widgets import cards, style
from threeloops.lab.widgets.display import publish
from threeloops.lab.widgets.predict import predictions, single_number
from threeloops.lab.widgets.style import palette

__all__ = ["against_prediction", "figure", "table"]


def figure(fig, caption: str = "") -> None:
    """Show a matplotlib figure once, as a PNG; where there is no notebook, its titles."""
    data, size = style.png(fig)
    said = caption or style.words(fig)
    publish(said, {"image/png": base64.b64encode(data).decode()}, {"image/png": size | {"alt": said}})


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
    found = numbers(value) if foreign(value) is None else None
    if found is not None and not found.shape and found.kind in ("int", "float"):
        return number(found.array.item()), True
    return str(value), False


def _table_html(header: list[str], rows: list[list[str]], numeric: list[bool], caption: str) -> str:
    line = "border-bottom:1px solid rgba(127,127,127,.35);padding:.25em .8em;text-align:"

    def row_html(tag: str, texts: list[str]) -> str:
        sides = ["right" if n else "left" for n in numeric]
        parts = (f'<{tag} style="{line}{s}">{cards.inline(t)}</{tag}>' for s, t in zip(sides, texts, strict=True))
        return f"<tr>{''.join(parts)}</tr>"

    head = f"<thead>{row_html('th', header)}</thead>" if header else ""
    body = "".join(row_html("td", row) for row in rows)
    title = f'<caption style="text-align:left;color:inherit">{cards.inline(caption)}</caption>' if caption else ""
    form = "border-collapse:collapse;margin:.4em 0;font-variant-numeric:tabular-nums"
    return f'<table style="{form}">{title}{head}<tbody>{body}</tbody></table>'


def _table_text(header: list[str], rows: list[list[str]], numeric: list[bool], caption: str) -> str:
    rows = [header, *rows] if header else rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if header:
        rows.insert(1, ["-" * width for width in widths])
    sides = [">" if n else "<" for n in numeric]
    lines = ["  ".join(f"{t:{s}{w}}" for t, s, w in zip(row, sides, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(([caption] if caption else []) + lines)


def against_prediction(key: str, measured, unit: str = "", source: str = "measured here") -> None:
    """Draw the measured value beside what was predicted under `key`, in the same unit, with the factor between them.

    `source` says where the value is from: "measured here", "recorded on …" or "model". Bars start at 0, but the axis is
    logarithmic if one would be more than ten times the other.
    """
    value = single_number(measured, "measured", unit)
    made = predictions.get(key)
    if made is not None and unit and made.unit and made.unit != unit:
        raise ValueError(f"{key}: predicted in {made.unit}, measured in {unit}; give both in the same unit")
    unit = unit or (made.unit if made else "")
    verdict = _confront(made.guess if made else None, value)
    bars = [(source, value, palette.blue)] + ([("your prediction", made.guess, palette.orange)] if made else [])
    said = [f"{name}: {with_unit(number(value), unit)}" for name, value, _ in bars]
    figure(_bars(bars, unit, verdict), "; ".join([*said, verdict]))


def _confront(guess: float | None, measured: float) -> str:
    """The sentence under the two bars."""
    if guess is None:
        return "no prediction was made: write one above and run its cell, then look again"
    if guess == measured:
        return "exactly as predicted"
    if guess * measured <= 0:
        return f"the prediction is off by {number(abs(guess - measured))}"
    factor = max(guess / measured, measured / guess)
    side = "too high" if abs(guess) > abs(measured) else "too low"
    closeness = "close" if factor <= 1.25 else "within a factor of two" if factor <= 2 else "worth a second look"
    return f"the prediction is {number(factor, 3)}× {side}: {closeness}"


def _bars(bars, unit: str, verdict: str):
    fig, axes = style.figure(width=7.5, height=1.0 + 0.55 * len(bars))
    names, values, colours = zip(*bars, strict=True)
    drawn = axes.barh([textwrap.fill(name, 24) for name in names], values, color=colours, height=0.62)
    axes.bar_label(drawn, labels=[with_unit(number(v), unit) for v in values], padding=5)
    if 0 < 10 * min(values) < max(values):
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 10, max(values) * 10)
    else:
        axes.margins(x=0.25)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(unit or "value")
    fig.suptitle(verdict[0].upper() + verdict[1:], x=0.01, ha="left", fontsize=11, fontweight="normal")
    return fig
