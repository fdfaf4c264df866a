"""Says that its cells are of a format whose test cells have no names, and moves the names out of sight."""

import json
from pathlib import Path

from grading import submission
from threeloops_grader.authoring.labs import Lab

SAYS = "missing and was restored"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    notebook = submission(lab, mean="def mean(values): pass", rescale="def rescale(values, top): pass")
    plain = json.loads(json.dumps(notebook))
    plain["nbformat_minor"] = 2
    for cell in plain["cells"]:
        del cell["id"]
        if cell["metadata"].get("nbgrader", {}).get("grade"):
            cell["metadata"]["nbgrader"]["grade_id"] = [cell["metadata"]["nbgrader"]["grade_id"]]
            cell["source"] = ["pa", "ss"]
    (folder / f"{lab.slug}.ipynb").write_text(json.dumps(plain))
