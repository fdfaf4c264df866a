"""How long a class's own code runs with no harness around it: `python -m benchmarks.computing ROOT LAB`.

Each submission's setup, answer and test cells, executed one after another in a fork of a warm process. What a harness
takes beyond this is the harness.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from pathlib import Path

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import Kind, Manifest, manifest
from threeloops_grader.submissions.reading import find, read
from threeloops_grader.submissions.rebuild import rebuild

COUNTED = (Kind.SETUP, Kind.SOLUTION, Kind.FREE, Kind.TEST)


def computing_seconds(trusted: Manifest, folder: Path) -> list[float]:
    """Seconds of each submission below `folder`, in the order of the students' names."""
    import matplotlib as mpl
    import threeloops.lab  # noqa: F401  (warm, as a harness's processes are)
    import torch

    mpl.use("agg")
    import matplotlib.pyplot  # noqa: F401

    torch.testing.assert_close(torch.ones(1), torch.ones(1))
    torch.set_num_threads(1)
    os.chdir(trusted.lab.folder)
    seconds = []
    for submission in find(folder, trusted.lab):
        notebook = rebuild(read(submission, folder), trusted).notebook
        sources = [c.source for c in notebook.cells if c.cell_type == "code" and trusted.kind(c) in COUNTED]
        seconds.append(_in_a_fork(sources))
    return seconds


def _in_a_fork(sources: list[str]) -> float:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(_execute(sources)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return float(text)


def _execute(sources: list[str]) -> float:
    """Seconds for all cells; one that raises ends there, as in a notebook that goes on."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    started = time.perf_counter()
    for source in sources:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(BaseException):
            exec(compile(source, "<cell>", "exec"), namespace)
    return time.perf_counter() - started


if __name__ == "__main__":
    root, slug = sys.argv[1:]
    print(json.dumps(computing_seconds(manifest(Lab(slug, Path(root))), Path(root) / "submitted")))
