"""Has a folder by the name of the lab's data file, which nbgrader copies to the same place."""

import json
from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = ""
EARNS = 100.0


def write(folder: Path, lab: Lab) -> None:
    (folder / f"{lab.slug}.ipynb").write_text(json.dumps(lab.master()))
    (folder / "data" / "samples.txt").mkdir(parents=True)
    (folder / "data" / "samples.txt" / "inside").write_text("1.0")
