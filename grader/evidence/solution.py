"""Execute one solution for the record: `python -m grader.evidence.solution LAB DEVICE` prints one JSON object."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from threeloops.lab.course.audit import MIME

from grader.authoring.labs import find_lab
from grader.course.execute import execute_solution

LONGEST_ERROR = 400
PAPERMILLS_OWN = "papermill-error-cell-tag"
"""The tag of cells that papermill adds to a notebook to point at an error."""


def main(name: str, device: str) -> None:
    """`failed` lists the cells that raised; `error` says what else kept the notebook from its end, if anything."""
    with tempfile.TemporaryDirectory() as folder:
        executed = execute_solution(find_lab(name), device, Path(folder), go_on=True)
    failed, audits = [], []
    cells = [c for c in executed.notebook.cells if PAPERMILLS_OWN not in c.metadata.get("tags", [])]
    for number, cell in enumerate(cells):
        for output in cell.get("outputs", []):
            if output["output_type"] == "error" and "raises-exception" not in cell.metadata.get("tags", []):
                error = f"{output['ename']}: {output['evalue']}"[:LONGEST_ERROR]
                failed.append({"cell": number, "begins": cell.source.strip()[:100], "error": error})
            if MIME in output.get("data", {}):
                audits.append(output["data"][MIME])
    answer = {"seconds": round(executed.seconds, 2), "error": executed.error, "failed": failed, "audits": audits}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
