"""`threeloops lab`: open a learner's copy of a lab in JupyterLab, with menus for learners."""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from threeloops.places import base_folder

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.machine.faults import MachineFault

__all__ = ["open_lab"]

_SETTINGS = Path(__file__).resolve().parent / "jupyter"
"""Jupyter's configuration for learners: nbgrader's menus, sidebar and Validate button, and the news, are off.

Its terminals are not login shells, because those would reset PATH and not find `threeloops`."""


def open_lab(lab: Lab, more: Sequence[str]) -> None:
    """Become JupyterLab with the lab open in the browser. `more` goes to JupyterLab.

    Raises:
        MachineFault: Jupyter could not write its own files.
    """
    if why := _why_not_here():
        raise MachineFault(why)
    os.chdir(lab.copies)
    command = _jupyter_lab(lab, more)
    os.execve(command[0], command, _environment(dict(os.environ)))


def _jupyter_lab(lab: Lab, more: Sequence[str] = ()) -> list[str]:
    """Return JupyterLab's command line: its files are those in `work/`, and the lab's notebook is open."""
    page = f"/lab/tree/{lab.work.relative_to(lab.copies).as_posix()}"
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={lab.copies}"]
    command += [f"--LabApp.default_url={page}"]
    if os.geteuid() == 0:
        command.append("--allow-root")  # it refuses otherwise, and in a container there is often no other user
    return [*command, *more]


def _environment(variables: dict[str, str]) -> dict[str, str]:
    """Return an environment in which the learner's settings come before any other Jupyter configuration."""
    before = variables.get("JUPYTER_CONFIG_PATH")
    path = os.pathsep.join([str(_SETTINGS), *([before] if before else [])])
    programs = os.pathsep.join([str(Path(sys.executable).parent), variables.get("PATH", os.defpath)])
    return {**variables, "JUPYTER_CONFIG_PATH": path, "PATH": programs}


def _why_not_here() -> str:
    data = Path(os.environ.get("JUPYTER_DATA_DIR") or base_folder("data") / "jupyter")
    folder = Path(os.environ.get("JUPYTER_RUNTIME_DIR") or data / "runtime").expanduser()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if os.access(folder, os.W_OK):
        return ""
    return (
        f"Jupyter cannot write {folder}, where it keeps the address of its server. Name a home folder that can be "
        'written, and run the command again: export HOME="$PWD/work"'
    )
