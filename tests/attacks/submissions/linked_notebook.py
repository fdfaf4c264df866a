"""Hands in a link to the solution that the grader itself keeps."""

from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = "is a symbolic link"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    (folder / f"{lab.slug}.ipynb").symlink_to(lab.solution_notebook)
