"""Gives the test cell an integer of a million digits for its points: quadratic work for whoever converts it."""

import json
from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = "the file is not JSON"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    text = json.dumps(lab.master())
    (folder / f"{lab.slug}.ipynb").write_text(text.replace('"points": 40', f'"points": {"9" * 1_000_000}'))
