"""Names a kernel, a language and a sandbox of its own in the metadata, and tags each cell as one to skip."""

import json
from pathlib import Path

from grading import submission
from threeloops_grader.authoring.labs import Lab

SAYS = "the cell's tags were changed"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    notebook = submission(lab, mean="def mean(values): pass", rescale="def rescale(values, top): pass")
    notebook.metadata.update(
        kernelspec={"name": "../bash", "display_name": "Bash", "language": "bash", "argv": ["true"]},
        language_info={"name": "bash"},
        threeloops={"lab": lab.slug, "sandbox": "none", "visible": True},
        nbgrader={"score": 100, "max_score": 100},
    )
    for cell in notebook.cells:
        cell.metadata.tags = ["skip-execution", "raises-exception", "injected-parameters", "setup"]
    (folder / f"{lab.slug}.ipynb").write_text(json.dumps(notebook))
