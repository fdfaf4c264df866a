"""Writes an answer of 24 MiB whose one rare character makes Python keep four bytes for each."""

import json
from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = "at most 50,000 are read"
EARNS = 60.0


def write(folder: Path, lab: Lab) -> None:
    notebook = lab.master()
    answer = next(c for c in notebook.cells if c.id == "mean")
    answer.source = "# \U0001f600" + "x" * (24 << 20)
    (folder / f"{lab.slug}.ipynb").write_text(json.dumps(notebook, ensure_ascii=False), encoding="utf-8")
