"""An explorer on a page without a kernel: its controls as HTML, and a script with its pictures."""

import base64
import html
import json
import math
import re
import zlib
from typing import Any

__all__ = ["legible", "script", "widget"]

_SVG = re.compile(r'<svg [^>]*?viewBox="0 0 ([\d.]+) .*?</svg>', re.DOTALL)
_LEAST_WIDTH = re.compile(r"min-width:min\([^)]*\)")
_FONT = re.compile(r"font(?:-size)?: ?([\d.]+)px")
_SMALLEST_TEXT = 9.0
"""CSS pixels. On a screen that is narrower than a drawing needs for that, the drawing scrolls."""


def widget(name: str, states: dict[str, Any], picture: str) -> str:
    """Return the controls of an explorer above the picture of its start. `script` holds the other pictures."""
    controls = "".join(
        _control(f"{name}-{number}", control) for number, control in enumerate(states["controls"], start=1)
    )
    note = _note(states)
    about = f'<p class="tl-note">{html.escape(note)}</p>' if note else ""
    single = " data-single" if states["one_at_a_time"] else ""
    return (
        f'<div class="tl-explorer" data-name="{name}"{single} role="group" aria-label="Explorer">'
        f'<div class="tl-controls">{controls}</div>{about}'
        f'<div class="tl-picture" aria-live="polite">{picture}</div></div>'
    )


def legible(text: str) -> str:
    """Return HTML whose drawings are so wide that their smallest text can be read."""
    return _SVG.sub(lambda drawing: _LEAST_WIDTH.sub(f"min-width:{_least_width(drawing)}px", drawing[0], count=1), text)


def _least_width(drawing: re.Match[str]) -> int:
    sizes = [float(size) for size in _FONT.findall(drawing[0])]
    return math.ceil(float(drawing[1]) * _SMALLEST_TEXT / min(sizes, default=_SMALLEST_TEXT))


def script(name: str, states: dict[str, Any]) -> str:
    """Return JavaScript that hands the pictures to `site.js`. A script also loads from a page on this disk, where a
    browser fetches nothing else."""
    lines = states["lines"]
    start = ",".join(str(control["start"]) for control in states["controls"])
    first = "\n".join(lines[at] for at in states["pictures"][start])
    wide = re.search(r"min-width:\d+px", legible(first))
    pictures = {
        "lines": [_LEAST_WIDTH.sub(wide[0], line) if wide else line for line in lines],
        **{part: states[part] for part in ("pictures", "errors")},
    }
    packed = zlib.compress(json.dumps(pictures, separators=(",", ":")).encode(), 9)
    return f'threeLoops.take("{name}","{base64.b64encode(packed).decode()}")\n'


def _control(name: str, control: dict[str, Any]) -> str:
    label, values, start = html.escape(control["label"]), control["values"], control["start"]
    if control["kind"] == "options":
        options = "".join(
            f'<option value="{index}"{" selected" if index == start else ""}>{html.escape(value)}</option>'
            for index, value in enumerate(values)
        )
        return f'<label for="{name}">{label}</label><select id="{name}" data-start="{start}">{options}</select>'
    all_values = html.escape(json.dumps(values), quote=True)
    return (
        f'<label for="{name}">{label}</label><span class="tl-slider"><input type="range" id="{name}" min="0" '
        f'max="{len(values) - 1}" step="1" value="{start}" data-start="{start}" data-values="{all_values}" '
        f'aria-valuetext="{html.escape(values[start], quote=True)}"><output for="{name}">{html.escape(values[start])}'
        "</output></span>"
    )


def _note(states: dict[str, Any]) -> str:
    """Say which states this page lacks, if it lacks any."""
    fewer = [c for c in states["controls"] if len(c["values"]) < c["of"]]
    parts = [f"{len(c['values'])} of the {c['of']:,} values of “{c['label']}”" for c in fewer]
    notes = [f"This page has {', '.join(parts)}."] if parts else []
    if states["one_at_a_time"]:
        notes.append("Here one control moves at a time, and the others return to their start.")
    return " ".join([*notes, "In the notebook, all values work."]) if notes else ""
