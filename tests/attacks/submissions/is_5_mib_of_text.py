"""Hands in an answer of five MiB, more than any interpreter should be given."""

import nbformat

SAYS = "at most 50,000 are read"
EARNS = 60.0


def write(folder, lab):
    notebook = lab.master()
    answer = next(cell for cell in notebook.cells if cell.id == "mean")
    answer.source = f"# {'x' * (5 << 20)}\n{answer.source}"
    nbformat.write(notebook, folder / f"{lab.slug}.ipynb")
