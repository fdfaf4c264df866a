"""Nests lists so deep that a recursive reader runs out of stack."""

import json
from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = "the file is not JSON"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    notebook = json.dumps({**lab.master(), "metadata": {"x": []}})
    deep = "[" * 150_000 + "]" * 150_000
    (folder / f"{lab.slug}.ipynb").write_text(notebook.replace('"x": []', f'"x": {deep}'))
