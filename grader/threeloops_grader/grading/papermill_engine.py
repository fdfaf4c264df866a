"""The class that papermill knows as the engine `walled`.

papermill loads its engines during its own import. So this module imports the rest of the grader inside functions.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from papermill.engines import Engine, NotebookExecutionManager

__all__ = ["WalledEngine"]

_OF_RUN = ("trusted", "report", "sandbox", "jobs", "only", "limits", "on_test")
"""The engine arguments that `scoring.run` takes. papermill passes others of its own."""

if TYPE_CHECKING:
    from nbformat import NotebookNode


class WalledEngine(Engine):
    """papermill's engine interface to the wall.

    Engine arguments: `lab` (a `Lab` or its name, by default `$THREELOOPS_LAB`), `sandbox` ("auto", "bwrap" or "none"),
    `jobs` (simultaneous submissions, which share the cores), `only` (an exercise), `visible` (leave out hidden tests
    and withhold nothing: a student's own check), `limits`, `report` (a `scoring.Report` to fill), `on_test` (called
    with each verdict as it is known).
    """

    @classmethod
    def nb_kernel_name(cls, nb: NotebookNode, name: str | None = None) -> str:
        return name or "python3"

    @classmethod
    def nb_language(cls, nb: NotebookNode, language: str | None = None) -> str:
        return language or "python"

    @classmethod
    def execute_notebook(cls, nb: NotebookNode, kernel_name: str, **kwargs: Any) -> NotebookNode:
        """Rebuild the notebook from the lab's master, then execute it."""
        from threeloops_grader.authoring.labs import Lab, find_lab
        from threeloops_grader.grading.scoring import Report, prepare

        named = kwargs.pop("lab", None) or os.environ.get("THREELOOPS_LAB")
        if not named:
            raise ValueError("the walled engine needs to know the lab: pass lab='01' or set THREELOOPS_LAB")
        lab = named if isinstance(named, Lab) else find_lab(named)
        report = kwargs.pop("report", None) or Report()
        trusted = prepare(nb, lab, report, visible=kwargs.pop("visible", False))
        report.notebook.metadata.papermill = nb.metadata.get("papermill", {})
        return super().execute_notebook(report.notebook, kernel_name, trusted=trusted, report=report, **kwargs)

    @classmethod
    def execute_managed_notebook(cls, nb_man: NotebookExecutionManager, kernel_name: str, **kwargs: Any) -> None:
        from threeloops_grader.grading.scoring import run

        run(watcher=nb_man, **{name: kwargs[name] for name in _OF_RUN if name in kwargs})
