"""Makes the whole folder of the lab a link to the root of the file system."""

from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = "is a symbolic link"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    folder.rmdir()
    folder.symlink_to(lab.folder, target_is_directory=True)
