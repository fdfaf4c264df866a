"""Gives every field of the notebook a type that it never has."""

import json
from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = "it holds no answer cell of lab"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    cells = [1, None, "x", [], {}, {"id": 7, "cell_type": [], "source": {"x": 1}, "metadata": [], "outputs": "no"}]
    content = {"nbformat": "four", "nbformat_minor": None, "metadata": "none", "cells": cells}
    (folder / f"{lab.slug}.ipynb").write_text(json.dumps(content))
