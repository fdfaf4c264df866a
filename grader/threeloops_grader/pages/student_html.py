"""HTML of a student's text and output, in which nothing runs, loads, or links anywhere.

These are the filters of nbgrader's pages (`nbgrader_config.py` names them). formgrader shows the pages inside the
instructor's Jupyter server, where one request by a page would be enough to run code. Markdown is rendered without its
raw HTML and then sanitised. A web address is shown as text beside the words that linked to it.
"""

import html
import time
from typing import Any

import pygments
from bleach.html5lib_shim import Filter
from bleach.sanitizer import Cleaner
from IPython.lib.lexers import IPython3Lexer
from jinja2 import pass_context
from jinja2.runtime import Context
from nbconvert.filters.ansi import strip_ansi
from nbconvert.filters.highlight import Highlight2HTML
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath, MathBlockParser, MathInlineParser
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import PythonLexer

__all__ = ["Highlight", "as_it_is", "page_markdown", "text_to_html"]

_MAX_RENDERED = 5_000
"""Characters of the longest markdown cell that is rendered; a longer one is shown as typed."""

_MAX_FORMULA = 1_000
_FORMULAS = ("block_math_tex", "block_math_latex", "inline_math_tex", "inline_math_latex", "latex_environment")
_SECONDS = 2.0
_PICTURES = tuple(f"data:image/{kind};base64," for kind in ("png", "jpeg", "gif"))
_PYTHON = ("python", "python3", "py", "ipython", "ipython3")
_TAGS = frozenset(
    "a blockquote br code dd del div dl dt em h1 h2 h3 h4 h5 h6 hr img input li ol p pre span strong table tbody td th "
    "thead tr ul".split()
)
_ATTRIBUTES = {
    "a": lambda _tag, name, value: name == "class" or (name == "href" and value.startswith("#")),
    "img": lambda _tag, name, value: name in ("alt", "title") or (name == "src" and value.startswith(_PICTURES)),
    "input": lambda _tag, name, value: name in ("checked", "disabled") or (name, value) == ("type", "checkbox"),
    "ol": ["start"],
    **dict.fromkeys(("code", "div", "li", "pre", "span"), ["class"]),
    **dict.fromkeys(("td", "th"), ["style"]),
    **dict.fromkeys(("h1", "h2", "h3", "h4", "h5", "h6"), ["id"]),
}


class _TextAlign:
    """The only style that rendered markdown needs: how a column of a table is aligned."""

    def sanitize_css(self, style: str) -> str:
        return style if style in ("text-align:left", "text-align:center", "text-align:right") else ""


class _OwnAnchors(Filter):
    """Prefixes the anchors of a student's text.

    The page finds its score fields by id, and a browser makes each id a global variable: a heading with such a name
    would take its place.
    """

    def __iter__(self) -> Any:
        for token in super().__iter__():
            attributes = token.get("data") if token["type"] in ("StartTag", "EmptyTag") else {}
            if (None, "id") in attributes:
                attributes[None, "id"] = f"text-{attributes[None, 'id']}"
            if (None, "href") in attributes:
                attributes[None, "href"] = f"#text-{attributes[None, 'href'].removeprefix('#')}"
            yield token


class _Renderer(IPythonRenderer):
    """Jupyter's markdown, with raw HTML and links as text, and only those pictures that the text itself holds."""

    def __init__(self) -> None:
        super().__init__(escape=True, allow_harmful_protocols=False)

    def block_html(self, html: str) -> str:
        return f"<p>{self.escape_html(html.strip())}</p>\n"

    def inline_html(self, html: str) -> str:
        return self.escape_html(html)

    def block_code(self, code: str, info: str | None = None) -> str:
        """Render code, with colour only for Python, because the lexers of some other languages take minutes for a page
        of hostile text."""
        language = (info or "").split(maxsplit=1)[:1]
        if language and language[0].lower() in _PYTHON:
            return _highlight(code, HtmlFormatter(), PythonLexer(), time.thread_time() + _SECONDS)
        return f"<pre><code>{self.escape_html(code)}</code></pre>\n"

    def link(self, text: str, url: str, title: str | None = None) -> str:
        if url.startswith("#"):
            return str(super().link(text, url, title))
        address = html.escape(url)
        return text if text in (address, url) else f"{text} ({address})"

    def image(self, text: str, url: str, title: str | None = None) -> str:
        if url.startswith(_PICTURES):
            return f'<img src="{html.escape(url)}" alt="{html.escape(text)}">'
        return f"[picture: {text or 'without a description'}]"


def _bounded(pattern: str) -> str:
    """Return the pattern of a formula with a bound on its length, so that an opening without an end costs little."""
    return pattern.replace(".*?", f".{{0,{_MAX_FORMULA}}}?").replace(".+?", f".{{1,{_MAX_FORMULA}}}?")


class _Block(MathBlockParser):
    SPECIFICATION = {**MathBlockParser.SPECIFICATION, "multiline_math": _bounded(MathBlockParser.MULTILINE_MATH)}


class _Inline(MathInlineParser):
    SPECIFICATION = {
        **MathInlineParser.SPECIFICATION,
        **{rule: _bounded(MathInlineParser.SPECIFICATION[rule]) for rule in _FORMULAS},
    }


@pass_context
def page_markdown(context: Context, source: str) -> str:
    """Replace nbconvert's filter `markdown2html`. Shows a cell as typed if it is too long or the page has taken too
    long."""
    until = context["resources"].setdefault("markdown_until", time.thread_time() + _SECONDS)
    if len(source) > _MAX_RENDERED or time.thread_time() > until:
        return _typed(source)
    return _markdown_to_html(source)


def _markdown_to_html(source: str) -> str:
    """Convert Markdown to sanitised HTML, with formulas as TeX. Text that nests too deep to be parsed is shown as
    typed."""
    try:
        rendered = MarkdownWithMath(_Renderer(), _Block(), _Inline(hard_wrap=False)).render(source)
        cleaner = Cleaner(_TAGS, _ATTRIBUTES, protocols=["data"], css_sanitizer=_TextAlign(), filters=[_OwnAnchors])
        return str(cleaner.clean(rendered))
    except RecursionError:
        return _typed(source)


def _typed(source: str) -> str:
    return f"<pre>{html.escape(source)}</pre>"


def text_to_html(text: str) -> str:
    """Show printed text without its terminal colours, because nbconvert's translation fails on codes that it does not
    know."""
    return html.escape(strip_ansi(text))


def as_it_is(text: str) -> str:
    """Replace nbconvert's `strip_files_prefix`, which edits addresses after they were checked."""
    return text


def _highlight(code: str, formatter: HtmlFormatter, lexer: Lexer, deadline: float) -> str:
    """Show code in colour, or plain if colouring would take this thread past `deadline` (of `time.thread_time`).

    Pygments needs 41 s for 20 kB of lines that hold only spaces.
    """
    tokens = []
    for token in lexer.get_tokens(code):
        if time.thread_time() > deadline:
            return f'<div class="highlight"><pre>{html.escape(code)}</pre></div>'
        tokens.append(token)
    return str(pygments.format(tokens, formatter))


class Highlight(Highlight2HTML):
    """Colours the code cells of one page, in bounded time for all of them. nbconvert makes one for each page."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.deadline = time.thread_time() + _SECONDS

    def __call__(self, source: str, language: str | None = None, metadata: Any = None) -> str:
        formatter = HtmlFormatter(cssclass="highlight hl-ipython3")
        return _highlight(source or " ", formatter, IPython3Lexer(), self.deadline)
