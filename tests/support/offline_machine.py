"""A machine that has what a PyTorch image brings and nothing else of this course: no Jupyter, nbformat or nbgrader.

It is a virtual environment whose packages are links to those installed here, so it costs no copy and no network.
"""

import os
import venv
from importlib import metadata
from pathlib import Path

from threeloops_grader.machine.installed import closure

from scripts.make_wheels import BROUGHT


def make_offline_machine(folder: Path, more: tuple[str, ...] = ()) -> Path:
    """Make the environment in `folder` and return its Python; `more`: packages that were carried there."""
    venv.EnvBuilder(symlinks=True).create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in closure((*BROUGHT, *more)):
        found = metadata.distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            link = site / top
            if not link.is_symlink():
                link.symlink_to(found.locate_file(top))
    return folder / "bin" / "python"


def offline_environment(folder: Path) -> dict[str, str]:
    """An environment of that machine: no git, nothing on the import path, a home of its own."""
    bare = folder / "empty"
    bare.mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("TMPDIR", "LANG") if name in os.environ}
    return kept | {"PATH": str(bare), "HOME": str(bare), "THREELOOPS_DEVICE": "cpu"}
