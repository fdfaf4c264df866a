"""Hides a million lists in UTF-16, where half of a character in a text looks like the text's end in UTF-8."""

import json
from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = "is not JSON"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    notebook = json.dumps({**lab.master(), "hides": "\u2230", "lists": []}, ensure_ascii=False)
    hidden = notebook.replace('"lists": []', f'"lists": [{"[]," * 1_000_000}[]]')
    (folder / f"{lab.slug}.ipynb").write_bytes(hidden.encode("utf-16-le"))
