"""Hands in an answer and a text that are long enough to keep whoever renders them busy for minutes."""

from pathlib import Path

import nbformat
from nbformat.v4 import new_markdown_cell
from threeloops_grader.authoring.labs import Lab

SAYS = "characters; at most 50,000 are read"
EARNS = 60.0


def write(folder: Path, lab: Lab) -> None:
    notebook = lab.master()
    next(c for c in notebook.cells if c.id == "mean").source += "\n" + "    \n" * 20_000
    notebook.cells.append(new_markdown_cell("\\begin{a}" * 16_000))
    nbformat.write(notebook, folder / f"{lab.slug}.ipynb")
