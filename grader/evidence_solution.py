"""Execute one solution for the record: `python -m grader.evidence_solution LAB DEVICE` prints one JSON object."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from threeloops.lab.audit import MIME

from grader.execute import execute_solution
from grader.labs import find_lab


def main(name: str, device: str) -> None:
    """`error` is empty where every cell ran to its end."""
    with tempfile.TemporaryDirectory() as folder:
        executed = execute_solution(find_lab(name), device, Path(folder))
    outputs = [output for cell in executed.notebook.cells for output in cell.get("outputs", [])]
    audits = [output["data"][MIME] for output in outputs if MIME in output.get("data", {})]
    print(json.dumps({"seconds": round(executed.seconds, 2), "error": executed.error, "audits": audits}))


if __name__ == "__main__":
    main(*sys.argv[1:])
