"""Ends in a string of escapes that is never closed: quadratic work for a careless scanner."""

from pathlib import Path

from threeloops_grader.authoring.labs import Lab

SAYS = "the file is not JSON"
EARNS = 0.0


def write(folder: Path, lab: Lab) -> None:
    (folder / f"{lab.slug}.ipynb").write_bytes(b'{"cells": [{"source": "' + b'\\"' * (8 << 20) + b"\\")
