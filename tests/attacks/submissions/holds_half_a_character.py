"""Hands in a text that holds half a character, which JSON can write and no file can."""

import json

SAYS = "mean of 1 numbers"
EARNS = 60.0


def write(folder, lab):
    notebook = lab.master()
    answer = next(cell for cell in notebook.cells if cell.id == "mean")
    answer.source = "x = 'HALF'\ndef mean(values):\n    return 3.0"
    (folder / f"{lab.slug}.ipynb").write_text(json.dumps(notebook).replace("HALF", "\\ud800"))
