"""Hands in 5 MiB of empty objects, which take a hundred times as much memory once they are built."""

from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = "more than 200,000 lists and objects"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    count = (5 << 20) // 3
    (folder / f"{lab.slug}.ipynb").write_bytes(b'{"cells":[' + b"{}," * count + b"{}]}")
