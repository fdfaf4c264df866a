"""The class that papermill knows as the engine `walled`.

papermill loads its engines while it is itself being imported, so this module imports nothing else at its top.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from papermill.engines import Engine, NotebookExecutionManager

if TYPE_CHECKING:
    from nbformat import NotebookNode


class WalledEngine(Engine):
    """papermill's engine interface to the wall.

    Engine arguments: `lab` (a `Lab` or its name; else `$THREELOOPS_LAB`), `sandbox` ("auto", "bwrap" or "none"), `jobs`
    (submissions graded at a time: each gets its part of the cores), `only` (an exercise), `visible` (leave out hidden
    tests and withhold nothing: a student's own check), `limits`, `report` (a `engine.Report` to fill), `on_test`
    (called with each `TestResult` as it is known).
    """

    @classmethod
    def nb_kernel_name(cls, nb: NotebookNode, name: str | None = None) -> str:
        return name or "python3"

    @classmethod
    def nb_language(cls, nb: NotebookNode, language: str | None = None) -> str:
        return language or "python"

    @classmethod
    def execute_notebook(cls, nb: NotebookNode, kernel_name: str, **kwargs: Any) -> NotebookNode:
        """Rebuild the notebook from the lab's master, unless the report says that it was, then execute it."""
        from grader.grading.engine import Report, prepare

        report = kwargs.pop("report", None) or Report()
        lab, visible = kwargs.pop("lab", None), kwargs.pop("visible", False)
        if report.trusted is None:
            prepare(nb, lab, report, visible=visible)
        else:
            report.notebook = nb  # what `prepare` made, as papermill has copied it
        return super().execute_notebook(report.notebook, kernel_name, report=report, **kwargs)

    @classmethod
    def execute_managed_notebook(cls, nb_man: NotebookExecutionManager, kernel_name: str, **kwargs: Any) -> None:
        from grader.grading.engine import run

        options: dict[str, Any] = {"sandbox": "auto", "jobs": 1, "only": None, "limits": None, "on_test": None}
        options |= {k: v for k, v in kwargs.items() if k in options}
        run(nb_man, kwargs["report"], **options)
