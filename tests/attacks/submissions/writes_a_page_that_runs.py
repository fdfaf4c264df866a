"""Fills its cells, outputs, attachments and metadata with markup that would run in the page that shows them."""

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output, new_raw_cell
from threeloops_grader.authoring.labs import Lab

SAYS = "2 cells have this name; their texts count together"
EARNS = 100.0

SCRIPT = "<script>fetch('/api/contents/pwned.txt', {method: 'PUT'})</script>"
LINK = "[the plot](javascript:fetch('/api/contents/pwned.txt',{method:'PUT'}))"


def write(folder: Path, lab: Lab) -> None:
    notebook = lab.master()
    output = new_output("display_data", data={"text/html": SCRIPT, "application/javascript": "alert(1)"})
    notebook.cells += [
        new_markdown_cell(f"{LINK}\n\n{SCRIPT}\n\n![x](attachment:x.svg)"),
        new_markdown_cell("![x](attachment:x.svg)", attachments={"x.svg": {"image/svg+xml": "PHN2Zy8+"}}),
        new_raw_cell(SCRIPT, metadata={"raw_mimetype": "text/html"}),
        new_code_cell("from IPython.display import HTML\nHTML('<img src=x onerror=alert(1)>')", outputs=[output]),
        new_code_cell('print("\\x1b[38m\\x1b[48;5mred")'),
    ]
    reflection = next(c for c in notebook.cells if c.id == "reflection")
    reflection.source = f"{LINK}\n\n{SCRIPT}"
    notebook.cells.append(nbformat.from_dict(reflection))
    notebook.metadata.update(title=f"</title>{SCRIPT}", widgets={"x": {"state": SCRIPT}}, language_info={"name": "'>"})
    nbformat.write(notebook, folder / f"{lab.slug}.ipynb")
    (folder / "page.html").write_text(SCRIPT)
    (folder / "nbgrader_config.py").write_text("open('pwned.txt', 'w')")
