"""Execute one solution for the record: `python -m grader.evidence.lab_run LAB DEVICE` prints one JSON object."""

import json
import sys
import tempfile
from pathlib import Path

from grader.authoring.labs import find_lab
from grader.course.execute import audits, execute_solution

__all__ = []

_LONGEST_ERROR = 400
_PAPERMILLS_OWN = "papermill-error-cell-tag"
"""papermill gives this tag to the cells that it adds to point at an error."""


def _main(name: str, device: str) -> None:
    """`failed` lists the cells that raised; `error` says what else stopped the notebook, if anything."""
    with tempfile.TemporaryDirectory() as folder:
        executed = execute_solution(find_lab(name), device, Path(folder), go_on=True)
    failed = []
    cells = [c for c in executed.notebook.cells if _PAPERMILLS_OWN not in c.metadata.get("tags", [])]
    for number, cell in enumerate(cells):
        for output in cell.get("outputs", []):
            if output["output_type"] == "error" and "raises-exception" not in cell.metadata.get("tags", []):
                error = f"{output['ename']}: {output['evalue']}"[:_LONGEST_ERROR]
                failed.append({"cell": number, "begins": cell.source.strip()[:100], "error": error})
    seconds, found = round(executed.seconds, 2), audits(executed.notebook)
    print(json.dumps({"seconds": seconds, "error": executed.error, "failed": failed, "audits": found}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
