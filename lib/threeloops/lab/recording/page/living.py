"""An explorer on a page without a kernel: its controls, and the pictures that were drawn beforehand.

The page may be any: the course's site, a report of `make course`, or one of `jupyter nbconvert --to html`. If nothing
runs the script, as in a notebook that JupyterLab does not trust, the picture of the start is shown without controls.
"""

import base64
import hashlib
import html
import json
import math
import zlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

__all__ = ["ASSETS", "asset", "framed", "living", "packed", "start_picture"]

ASSETS = ("explorer.css", "explorer.js")
"""The files beside this module that a page with explorers needs."""


@cache
def asset(name: str) -> str:
    """Return the text of one of `ASSETS`."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8").rstrip()


def living(states: Mapping[str, Any], picture: str) -> str:
    """Return HTML that holds everything: the explorer, its pictures, the style and the script.

    `states` is what `threeloops.lab.recording.states` returns, and `picture` the HTML of the start.
    """
    text = packed(states["lines"], states["pictures"], states["errors"])
    name = f"explorer-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    inside = f'<script type="text/plain" class="tl-states">{text}</script><script>{asset("explorer.js")}</script>'
    return f"<style>{asset('explorer.css')}</style>{framed(name, states, picture, inside)}"


def packed(lines: list[str], pictures: Mapping[str, list[int]], errors: Mapping[str, str]) -> str:
    """Return the pictures as the script unpacks them: JSON, deflated, in base64."""
    text = json.dumps({"lines": lines, "pictures": pictures, "errors": errors}, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def start_picture(states: Mapping[str, Any]) -> str:
    """Return the picture that the explorer starts with."""
    start = ",".join(str(control["start"]) for control in states["controls"])
    return "\n".join(states["lines"][at] for at in states["pictures"][start])


def framed(name: str, states: Mapping[str, Any], picture: str, inside: str = "") -> str:
    """Return the controls of an explorer above the picture of its start. `name` tells explorers of a page apart.

    The controls stay hidden until the script finds them. `inside` is more HTML for the same frame.
    """
    controls = "".join(
        _control(f"{name}-{number}", control) for number, control in enumerate(states["controls"], start=1)
    )
    note = _note(states)
    about = f'<p class="tl-note">{html.escape(note)}</p>' if note else ""
    single = " data-single" if states["one_at_a_time"] else ""
    return (
        f'<div class="tl-explorer" data-name="{name}"{single} role="group" aria-label="Explorer">'
        f'<div style="display:none"><div class="tl-controls">{controls}</div>{about}</div>'
        f'<div class="tl-picture" aria-live="polite">{picture}</div>{inside}</div>'
    )


def _control(name: str, control: Mapping[str, Any]) -> str:
    label, values, start = html.escape(control["label"]), control["values"], control["start"]
    fewer = len(values) < control["of"]
    of = f'<span class="tl-of">{len(values)} of {control["of"]:,} values</span>' if fewer else ""
    if control["kind"] == "options":
        options = "".join(
            f'<option value="{index}"{" selected" if index == start else ""}>{html.escape(value)}</option>'
            for index, value in enumerate(values)
        )
        choice = f'<select id="{name}" data-start="{start}">{options}</select>'
        return f'<label for="{name}">{label}</label><span class="tl-slider">{choice}{of}</span>'
    all_values = html.escape(json.dumps(values), quote=True)
    return (
        f'<label for="{name}">{label}</label><span class="tl-slider"><input type="range" id="{name}" min="0" '
        f'max="{len(values) - 1}" step="1" value="{start}" data-start="{start}" data-values="{all_values}" '
        f'aria-valuetext="{html.escape(values[start], quote=True)}"><output for="{name}">{html.escape(values[start])}'
        f"</output>{of}</span>"
    )


def _note(states: Mapping[str, Any]) -> str:
    """Say how many settings this page lacks, if it lacks any."""
    settings = math.prod(control["of"] for control in states["controls"])
    kept = len(states["pictures"]) + len(states["errors"])
    notes = [f"This page has {kept:,} of {settings:,} settings."] if kept < settings else []
    if states["one_at_a_time"]:
        notes.append("Here one control moves at a time, and the others return to their start.")
    if fields := states.get("instead"):
        return f"This page has {kept} recorded examples. In the notebook you set these yourself: {', '.join(fields)}."
    return " ".join([*notes, "In the notebook, all of them work."]) if notes else ""
