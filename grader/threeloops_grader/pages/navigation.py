"""Links from a page to the pages beside it and to its own sections, without scripts."""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["NAVIGATION_STYLE", "PageLink", "anchored", "navigation"]

_HEADING = re.compile(r"<h2(?P<more>[^>]*)>(?P<text>.*?)</h2>", re.DOTALL)
_ID = re.compile(r'\bid="([^"]*)"')
_PILCROW = re.compile(r'<a class="anchor-link".*?</a>', re.DOTALL)
_FEWEST = 3
"""Sections below which a list of them helps nobody."""

NAVIGATION_STYLE = """
nav.pages { font: 14px/1.5 system-ui, sans-serif; margin: 0 0 1.5rem; } nav.pages a { color: inherit; }
nav.pages ul { margin: .5rem 0 0; padding: 0; list-style: none; }
nav.pages li { margin: .25rem 0; } nav.pages summary { cursor: pointer; }
h2 { scroll-margin-top: 1rem; }
@media (min-width: 92rem) { nav.pages { position: fixed; left: 0; top: 0; box-sizing: border-box; width: 15rem;
  height: 100vh; overflow-y: auto; padding: 1.5rem 1rem; } }
@media print { nav.pages { display: none; } }
"""


@dataclass(frozen=True)
class PageLink:
    """Another page, by its address relative to this one."""

    text: str
    href: str


def anchored(body: str) -> str:
    """Return the same HTML, in which every second-level heading has an id."""
    taken = set(_ID.findall(body))

    def mark(match: re.Match[str]) -> str:
        if _ID.search(match["more"]):
            return match[0]
        plain = re.sub(r"\W+", "-", _words(match["text"])).strip("-").lower() or "section"
        name = next(n for n in (plain, *(f"{plain}-{k}" for k in range(2, len(taken) + 3))) if n not in taken)
        taken.add(name)
        return f'<h2{match["more"]} id="{name}">{match["text"]}</h2>'

    return _HEADING.sub(mark, body)


def navigation(body: str, back: Sequence[PageLink]) -> str:
    """Return links to other pages, and to the sections of a page that is `anchored`, or "" if there are neither."""
    sections = [
        f'<li><a href="#{found_id[1]}">{html.escape(_words(heading["text"]))}</a></li>'
        for heading in _HEADING.finditer(body)
        if (found_id := _ID.search(heading["more"]))
    ]
    links = " · ".join(f'<a href="{html.escape(link.href)}">{html.escape(link.text)}</a>' for link in back)
    listed = ""
    if len(sections) >= _FEWEST:
        listed = f"<details open><summary>On this page</summary><ul>{''.join(sections)}</ul></details>"
    return f'<nav class="pages" aria-label="Pages">{links}{listed}</nav>' if links or listed else ""


def _words(text: str) -> str:
    """Return a heading's words, without its markup and nbconvert's ¶."""
    return html.unescape(re.sub(r"<[^>]*>", "", _PILCROW.sub("", text))).strip()
