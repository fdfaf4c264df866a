"""Execute one solution for the record.

`python -m threeloops_grader.evidence.lab_run LAB DEVICE` prints one JSON object.
"""

import json
import sys
import tempfile
from pathlib import Path

from threeloops_grader.authoring.labs import find_lab
from threeloops_grader.course.execute import audits, execute_solution

__all__ = []

_LONGEST_ERROR = 400
_PAPERMILLS_OWN = "papermill-error-cell-tag"
"""papermill gives this tag to the cells that it adds to point at an error."""


def _main(name: str, device: str) -> None:
    """Run a lab and report it. `failed` lists the cells that raised, in the deep dives too. `error` says what else
    stopped it, if anything."""
    failed = []
    audited = []
    seconds = 0.0
    errors = []
    for notebook in find_lab(name).notebooks:
        with tempfile.TemporaryDirectory() as folder:
            executed = execute_solution(notebook, device, Path(folder), go_on=True)
        cells = [c for c in executed.notebook.cells if _PAPERMILLS_OWN not in c.metadata.get("tags", [])]
        for number, cell in enumerate(cells):
            for output in cell.get("outputs", []):
                if output["output_type"] == "error" and "raises-exception" not in cell.metadata.get("tags", []):
                    error = f"{output['ename']}: {output['evalue']}"[:_LONGEST_ERROR]
                    begins = cell.source.strip()[:100]
                    failed.append({"notebook": notebook.stem, "cell": number, "begins": begins, "error": error})
        seconds += executed.seconds
        audited += audits(executed.notebook)
        errors += [executed.error] if executed.error else []
    record = {"seconds": round(seconds, 2), "error": "; ".join(errors), "failed": failed, "audits": audited}
    print(json.dumps(record))


if __name__ == "__main__":
    _main(*sys.argv[1:])
