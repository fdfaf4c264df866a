"""Adds more files than anybody hands in, for whoever copies or lists them."""

import json
from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = "more than 1,000 files"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    (folder / f"{lab.slug}.ipynb").write_text(json.dumps(lab.master()))
    for number in range(1001):
        (folder / f"{number}.txt").touch()
