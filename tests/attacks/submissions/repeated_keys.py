"""Names each key of the notebook twice, once honest and once hostile, so that two readers may see two notebooks."""

import json
from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = "mean: the answer's cell is missing"
EARNS = 60.0


def write(folder: Path, lab: Lab) -> None:
    honest = lab.master()
    last = {**honest, "cells": [c for c in honest.cells if c.id != "mean"]}
    text = json.dumps(honest)[:-1] + ", " + json.dumps(last)[1:]
    (folder / f"{lab.slug}.ipynb").write_text(text)
