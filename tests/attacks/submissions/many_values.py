"""Hides millions of short strings in the metadata of an otherwise honest notebook."""

import json
from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = "or 1,000,000 values"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    notebook = json.dumps({**lab.master(), "metadata": {"x": []}})
    (folder / f"{lab.slug}.ipynb").write_text(notebook.replace('"x": []', f'"x": [{"0," * 1_500_000}0]'))
