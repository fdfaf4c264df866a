"""Adds a sparse file of a terabyte, which takes no space until somebody copies it."""

import json
from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = "at most 100 are accepted"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    (folder / f"{lab.slug}.ipynb").write_text(json.dumps(lab.master()))
    with (folder / "data.bin").open("wb") as file:
        file.truncate(1 << 40)
