"""Machines with some of the packages that are installed here and nothing else.

Each is a virtual environment whose packages are links to those installed here, so it costs no copy and no network.
"""

import os
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from threeloops_grader.machine.installed import closure

from scripts.make_wheels import BROUGHT


def make_offline_machine(folder: Path, more: tuple[str, ...] = ()) -> Path:
    """Make a machine that has what a PyTorch image brings and nothing else of this course: no Jupyter, nbformat or
    nbgrader. Return its Python; `more`: packages that were carried there."""
    return make_machine(folder, closure((*BROUGHT, *more)))


def make_machine(folder: Path, distributions: Iterable[str]) -> Path:
    """Make a machine with exactly these distributions and return its Python."""
    venv.EnvBuilder(symlinks=True).create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    shared = {top for top, owners in metadata.packages_distributions().items() if len(set(owners)) > 1}
    for name in distributions:
        distribution = metadata.distribution(name)
        files = [file for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")]
        tops = {file.parts[0] for file in files}
        parts = {*(tops - shared), *(str(file) for file in files if file.parts[0] in shared)}
        for part in parts:
            link = site / part
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(distribution.locate_file(part))
    return folder / "bin" / "python"


def offline_environment(folder: Path) -> dict[str, str]:
    """An environment of that machine: no git, nothing on the import path, a home of its own."""
    bare = folder / "empty"
    bare.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("TMPDIR", "LANG") if name in os.environ}
    return kept | {"PATH": str(bare), "HOME": str(bare), "THREELOOPS_DEVICE": "cpu"}
