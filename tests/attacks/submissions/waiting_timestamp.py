"""Makes timestamp.txt, which nbgrader reads, a pipe that nobody writes to: the reader waits for ever."""

import json
import os
from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = "timestamp.txt is a pipe, a socket or a device"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    (folder / f"{lab.slug}.ipynb").write_text(json.dumps(lab.master()))
    os.mkfifo(folder / "timestamp.txt")
