"""An explorer on the site: wide enough to be read on a phone, with its pictures in a script of their own."""

import math
import re
from typing import Any

from threeloops.lab.recording.page.living import framed, packed, start_picture

__all__ = ["legible", "script", "widget"]

_SVG = re.compile(r'<svg [^>]*?viewBox="0 0 ([\d.]+) .*?</svg>', re.DOTALL)
_LEAST_WIDTH = re.compile(r"min-width:min\([^)]*\)")
_FONT = re.compile(r"font(?:-size)?: ?([\d.]+)px")
_SMALLEST_TEXT = 9.0
"""CSS pixels. On a screen that is narrower than a drawing needs for that, the drawing scrolls."""


def widget(name: str, states: dict[str, Any]) -> str:
    """Return the controls of an explorer above the picture of its start. `script` holds the other pictures."""
    return framed(name, states, f'<div class="tl-figure">{legible(start_picture(states))}</div>')


def legible(text: str) -> str:
    """Return HTML whose drawings are so wide that their smallest text can be read."""
    return _SVG.sub(lambda drawing: _LEAST_WIDTH.sub(f"min-width:{_least_width(drawing)}px", drawing[0], count=1), text)


def _least_width(drawing: re.Match[str]) -> int:
    sizes = [float(size) for size in _FONT.findall(drawing[0])]
    return math.ceil(float(drawing[1]) * _SMALLEST_TEXT / min(sizes, default=_SMALLEST_TEXT))


def script(name: str, states: dict[str, Any]) -> str:
    """Return JavaScript that hands the pictures to `explorer.js`. A script also loads from a page on this disk, where
    a browser fetches nothing else."""
    wide = re.search(r"min-width:\d+px", legible(start_picture(states)))
    lines = [_LEAST_WIDTH.sub(wide[0], line) if wide else line for line in states["lines"]]
    return f'threeLoops.take("{name}","{packed(lines, states["pictures"], states["errors"])}")\n'
