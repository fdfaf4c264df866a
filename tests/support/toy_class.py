"""A class that takes the toy course: its folder, and `threeloops` commands that run in it."""

import os
import shutil
import subprocess
from pathlib import Path

from grading import REPOSITORY
from threeloops_grader.authoring.labs import Lab
from threeloops_grader.sandbox import bwrap
from toy_course import SOURCE, make_course
from warm_commands import warm

SANDBOX = "none" if bwrap.why_not() else "auto"


def make_class_course(root: Path, source: str = SOURCE) -> Lab:
    """Write the toy course below `root`, with nbgrader's settings and everything else that a bundle holds."""
    lab = make_course(root, source)
    shutil.copy(REPOSITORY / "nbgrader_config.py", root)
    for folder in ("lib/threeloops", "grader", "scripts"):
        (root / folder).parent.mkdir(exist_ok=True)
        (root / folder).symlink_to(REPOSITORY / folder)
    return lab


def class_environment(root: Path) -> dict[str, str]:
    """The variables of a command in this course, with an exchange of its own."""
    return {**os.environ, "THREELOOPS_ROOT": str(root), "THREELOOPS_EXCHANGE": str(root / "exchange")}


def run_threeloops(root: Path, *words: str, killed_at: int = 0) -> subprocess.CompletedProcess[str]:
    """Run `threeloops WORDS` in the course's folder. The nbgrader commands that it calls are processes of their own.

    With `killed_at`, it gets SIGKILL before its n-th change of a file or folder.
    """
    return warm().run(["threeloops_grader.cli", *words], root, class_environment(root), 600, killed_at)


def threeloops(root: Path, *words: str, code: int = 0) -> str:
    """Run a command that must exit with `code`; returns everything that it printed."""
    done = run_threeloops(root, *words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr
