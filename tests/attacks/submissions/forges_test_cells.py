"""Copies the test cells with other code, points and results, hides the first ones, and adds a test of its own."""

import copy
import json
from pathlib import Path

from grading import submission
from nbformat.v4 import new_code_cell, new_output
from threeloops_grader.authoring.labs import Lab

SAYS = "the lab's own was used"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    notebook = submission(lab, mean="def mean(values): pass", rescale="def rescale(values, top): pass")
    tests = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    passed = new_output("stream", name="stdout", text="✓ all checks")
    for test in tests:
        forged = copy.deepcopy(test)
        forged.update(source="pass", outputs=[passed], execution_count=1)
        forged.metadata.nbgrader.points = 1000
        notebook.cells.append(forged)
        test.metadata.nbgrader.grade = False
    about = {"grade": True, "solution": False, "locked": True, "points": 100, "grade_id": "bonus", "schema_version": 3}
    notebook.cells.append(new_code_cell("100", metadata={"nbgrader": about}))
    (folder / f"{lab.slug}.ipynb").write_text(json.dumps(notebook))
