"""An explorer on a page without a kernel: its controls as HTML, and a script with its pictures."""

import base64
import html
import json
import zlib
from typing import Any

__all__ = ["script", "widget"]


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


def script(name: str, states: dict[str, Any]) -> str:
    """Return JavaScript that hands the pictures to `site.js`. A script also loads from a page on this disk, where a
    browser fetches nothing else."""
    kept = {part: states[part] for part in ("lines", "pictures", "errors")}
    packed = zlib.compress(json.dumps(kept, separators=(",", ":")).encode(), 9)
    return f'threeLoops.take("{name}","{base64.b64encode(packed).decode()}")\n'


def _control(name: str, control: dict[str, Any]) -> str:
    label, values, start = html.escape(control["label"]), control["values"], control["start"]
    if control["kind"] == "options":
        options = "".join(
            f'<option value="{index}"{" selected" if index == start else ""}>{html.escape(value)}</option>'
            for index, value in enumerate(values)
        )
        return f'<label for="{name}">{label}</label><select id="{name}" data-start="{start}">{options}</select>'
    said = html.escape(json.dumps(values), quote=True)
    return (
        f'<label for="{name}">{label}</label><span class="tl-slider"><input type="range" id="{name}" min="0" '
        f'max="{len(values) - 1}" step="1" value="{start}" data-start="{start}" data-values="{said}" '
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
