"""Puts a link to /dev/zero beside the notebook: whoever copies the folder fills the disk."""

import json
from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = "notes.bin is a symbolic link"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    (folder / f"{lab.slug}.ipynb").write_text(json.dumps(lab.master()))
    (folder / "notes.bin").symlink_to("/dev/zero")
