"""Displays a picture of two megabytes in each of six cells, to fill the page that shows them."""

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell
from threeloops_grader.authoring.labs import Lab

SAYS = "more than the 4 MB of pictures that are kept"
EARNS = 100.0

CELL = r"""
import os, struct
from IPython.display import Image
head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 640, 480)
Image(data=head + os.urandom(1_400_000), format="png")
"""


def write(folder: Path, lab: Lab) -> None:
    notebook = lab.master()
    setup = next(i for i, c in enumerate(notebook.cells) if c.id == "setup")
    notebook.cells[setup + 1 : setup + 1] = [new_code_cell(CELL) for _ in range(6)]
    nbformat.write(notebook, folder / f"{lab.slug}.ipynb")
