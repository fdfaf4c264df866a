"""Hands in modules, settings and data that a process in this folder would read before the grader's own."""

import json
from pathlib import Path

from grading import submission
from threeloops_grader.authoring.labs import Lab

SAYS = ""
EARNS = 0.0
LIES = """
class Answer(float):
    def __call__(self, *arguments, **options): return self
    def __getattr__(self, name): return self
    __enter__ = __call__
    def __exit__(self, *error): return True
check = mean = rescale = Answer(3)
"""
SHADOWED = (
    "sitecustomize.py", "usercustomize.py", "conftest.py", "numpy.py", "json.py", "threeloops/lab/__init__.py",
    "threeloops/__init__.py", "nbgrader_config.py", "jupyter_config.py", "ipython_config.py",
    ".ipython/profile_default/startup/first.py", ".jupyter/jupyter_nbconvert_config.py",
)  # fmt: skip


def write(folder: Path, lab: Lab) -> None:
    notebook = submission(lab, mean="def mean(values): return values[0]", rescale="def rescale(values, top): pass")
    (folder / f"{lab.slug}.ipynb").write_text(json.dumps(notebook))
    for name in SHADOWED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(LIES)
    (folder / ".env").write_text("THREELOOPS_GRADED=0\n")
    (folder / "data").mkdir()
    (folder / "data" / "samples.txt").write_text("3.0\n")  # with these samples, the first one is their mean
