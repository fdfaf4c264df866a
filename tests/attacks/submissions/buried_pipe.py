"""Hides a pipe two folders down, where a copy of the folder would wait for ever."""

import json
import os
from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = "a/b/c is a pipe, a socket or a device"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    (folder / f"{lab.slug}.ipynb").write_text(json.dumps(lab.master()))
    (folder / "a" / "b").mkdir(parents=True)
    os.mkfifo(folder / "a" / "b" / "c")
