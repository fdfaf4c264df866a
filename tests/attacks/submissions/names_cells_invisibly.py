"""Gives each test cell a name that looks the same, with an invisible character, and cells that pass the true names."""

import copy
import json
from pathlib import Path

from grading import submission
from threeloops_grader.authoring.labs import Lab

SAYS = "the lab's own was used"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    notebook = submission(lab, mean="def mean(values): pass", rescale="def rescale(values, top): pass")
    for number, cell in reversed(list(enumerate(notebook.cells))):
        about = cell.metadata.get("nbgrader", {})
        if about.get("grade"):
            passes = copy.deepcopy(cell)
            passes.source = "pass"
            notebook.cells.insert(number, passes)
            cell.id += "x"
            about["grade_id"] += "\u200b"
    (folder / f"{lab.slug}.ipynb").write_text(json.dumps(notebook))
