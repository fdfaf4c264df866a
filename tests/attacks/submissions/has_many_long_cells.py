"""Hands in many cells, each within the limit, that together take minutes to render."""

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell
from threeloops_grader.authoring.labs import Lab

SAYS = "characters; at most 500,000 are read"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    notebook = lab.master()
    for number in range(20):
        notebook.cells.append(new_code_cell(f"{number}\n" + "    \n" * 5_000))
        notebook.cells.append(new_markdown_cell(f"{number}\n" + "\\begin{a}" * 2_700))
    nbformat.write(notebook, folder / f"{lab.slug}.ipynb")
