"""Adds a notebook whose name is not UTF-8: nbgrader asks its database for every notebook by name."""

import json
import os
from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = ""
EARNS = 100.0


def write(folder: Path, lab: Lab) -> None:
    text = json.dumps(lab.master())
    (folder / f"{lab.slug}.ipynb").write_text(text)
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.ipynb")).write_text(text)
