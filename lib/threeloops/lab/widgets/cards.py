"""Cards: one small frame for everything the course says beside its prose, in HTML and as plain text.

Colours are translucent and text inherits the page's colour, so a card is readable on light and dark themes; styles are
inline, so an exported page needs nothing else.
"""

import re
from html import escape

from threeloops.lab.widgets.display import preformatted, publish
from threeloops.lab.widgets.style import WIDTH, palette

__all__ = ["coloured", "failed", "frame", "inline", "passed", "small", "unwritten"]

_FRAME = (
    "border-left:4px solid {0};background:{0}1f;border-radius:4px;padding:.55em .9em;margin:.3em 0;"
    f"max-width:{WIDTH};box-sizing:border-box;line-height:1.5;font-size:var(--jp-content-font-size1,1em)"
)
_FOLDED = (
    "<style>.jp-Placeholder-content,.jp-Placeholder-contentContainer{min-width:0}.jp-Placeholder-contentContainer"
    "{display:flex}.jp-PlaceholderText{overflow:hidden;text-overflow:ellipsis}</style>"
)
"""JupyterLab lets the first line of a folded cell widen the page; the style of one card counts for the whole page."""
_MARK = {
    "passed": palette.green,
    "failed": palette.vermillion,
    "question": palette.blue,
    "hint": palette.orange,
    "plain": palette.grey,
}


def inline(text: str) -> str:
    """Escape a text, and set `code`, **bold** and *emphasis* as Markdown does."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:
        return escape(str(text))
    return "".join(f"<code>{escape(part)}</code>" if i % 2 else _emphasis(escape(part)) for i, part in enumerate(parts))


def _emphasis(text: str) -> str:
    bold = re.sub(r"\*\*(\S[^*]*)\*\*", r"<b>\1</b>", text)
    return re.sub(r"(?<![\w*])\*(\w(?:[^*]*\w)?)\*(?![\w*])", r"<i>\1</i>", bold)


def frame(kind: str, body: str) -> str:
    """`body` (HTML) as a card; `kind` is a key of _MARK."""
    return f'<div style="{_FRAME.format(_MARK[kind])}">{_FOLDED}{body}</div>'


def coloured(kind: str, text: str) -> str:
    """`text` (HTML) in bold and in the colour of a card, mixed with the page's ink so that it can be read."""
    return f'<b style="color:color-mix(in srgb, {_MARK[kind]} 60%, currentColor)">{text}</b>'


def small(text: str) -> str:
    return f'<span style="opacity:.75;font-size:90%">{inline(text)}</span>'


def passed(title: str, times: str) -> None:
    """Show the one line of a check that passed."""
    html = f"{coloured('passed', '✓')} <b>{inline(title)}</b> {small('· ' + times)}"
    publish(f"✓ {title} ({times})", {"text/html": frame("passed", html)})


def failed(title: str, lines: list[str], asked: str) -> None:
    """Show a failed check: the observations, line by line, and the line of the cell that `asked`."""
    seen = preformatted("\n".join(lines), "margin-top:.4em")
    html = f"{coloured('failed', '✗')} <b>{inline(title)}</b>{seen}{small(asked) if asked else ''}"
    text = "\n".join([f"✗ {title}", *lines, *([f"  {asked}"] if asked else [])])
    publish(text, {"text/html": frame("failed", html)})


def unwritten(title: str, why: str) -> None:
    """Show that a check has nothing to check yet."""
    publish(f"○ {title}: {why}", {"text/html": frame("plain", f"○ <b>{inline(title)}</b><br>{small(why)}")})
