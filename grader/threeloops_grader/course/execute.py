"""Execute a lab's solution like a user: plain papermill, a Jupyter kernel, every cell, on this machine's device."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbformat import NotebookNode
from papermill.engines import NBClientEngine, NotebookExecutionManager, papermill_engines
from papermill.exceptions import PapermillExecutionError
from threeloops.lab.predictions.audit import MIME
from threeloops.lab.recording.notes import VARIABLE
from threeloops.lab.recording.states import MIME as STATES

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.grading.records import Record
from threeloops_grader.machine.child_process import changed_environment
from threeloops_grader.sandbox.pool import Sandbox

__all__ = [
    "CourseReport", "Executed", "LabOutcome", "OnCell", "audited_cells", "audits", "execute_solution",
    "seconds_to_record",
]  # fmt: skip

_CELL_SECONDS = 600
_RECORDING_SECONDS = 40.0
"""Processor seconds that the pictures of explorers may take per lab, in its notebooks together."""
_ENGINE = "saved once"
OnCell = Callable[[int, int], None]


@dataclass
class Executed:
    """An executed solution notebook. `error` is empty if every cell ran to its end."""

    notebook: NotebookNode
    seconds: float
    error: str = ""


@dataclass
class LabOutcome:
    """Everything that a run of the course found out about one lab."""

    lab: Lab
    executed: list[Executed]
    """The core notebook, and the deep dives if there are any, as in `Lab.notebooks`."""
    verified_on: str
    grades: dict[str, Record] = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    before: bool = False
    """An earlier run found it, and nothing that it depends on has changed since."""
    sandbox: Sandbox = "none"
    """The sandbox in which `grades` were graded."""

    @property
    def seconds(self) -> float:
        return sum(e.seconds for e in self.executed) + sum(r.seconds for r in self.grades.values())

    def to_dict(self) -> dict[str, Any]:
        scores = {k: {"score": r.score, "max_score": r.max_score} for k, r in self.grades.items()}
        summary = {"lab": self.lab.slug, "seconds": round(self.seconds, 2), "verified_on": self.verified_on}
        return {**summary, **scores, "faults": self.faults, "before": self.before}


@dataclass
class CourseReport:
    device: str
    sandbox: Sandbox
    labs: list[LabOutcome]
    seconds: float

    @property
    def faults(self) -> list[str]:
        return [f"{o.lab.slug}: {fault}" for o in self.labs for fault in o.faults]

    def to_dict(self) -> dict[str, Any]:
        labs = [o.to_dict() for o in self.labs]
        return {"device": self.device, "sandbox": self.sandbox, "seconds": round(self.seconds, 2), "labs": labs}


class _SavedOnce(NBClientEngine):  # type: ignore[misc]
    """Papermill's engine, but the notebook is saved once, at the end or after an error, and not twice per cell."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: NotebookExecutionManager, kernel_name: str, **kwargs: Any) -> None:
        path = nb_man.output_path
        nb_man.output_path = None
        try:
            super().execute_managed_notebook(nb_man, kernel_name, **kwargs)
        finally:
            nb_man.output_path = path


papermill_engines.register(_ENGINE, _SavedOnce)


def execute_solution(
    lab: Lab,
    device: str,
    folder: Path,
    on_cell: OnCell = lambda cell, of: None,
    *,
    go_on: bool = False,
    record: float | None = None,
) -> Executed:
    """Execute a notebook of solutions in `folder`, with a copy of the lab's data beside it.

    Args:
        device: "auto", "cpu" or "cuda". The kernel sees it as `$THREELOOPS_DEVICE`.
        folder: gets the executed notebook, even if a cell failed, and all files that the cells write.
        on_cell: called with the number of a cell, from 1, and the number of cells before each cell.
        go_on: also execute the cells after one that failed.
        record: keep what a page without a kernel needs (`threeloops.lab.recording`), and spend at most so many
            processor seconds on the pictures of explorers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if lab.data.is_dir():
        shutil.copytree(lab.data, folder / "data", dirs_exist_ok=True)
    master = lab.master()
    output = folder / f"{lab.stem}.ipynb"
    started = time.perf_counter()
    error = ""
    chosen = {} if device == "auto" else {"THREELOOPS_DEVICE": device}
    chosen |= {VARIABLE: str(record)} if record is not None else {}
    with (
        tempfile.TemporaryDirectory(prefix="threeloops-") as home,  # a progress record of its own, not the reader's
        changed_environment({"THREELOOPS_HOME": home, **chosen}),
    ):
        try:
            papermill.execute_notebook(
                master,
                str(output),
                engine_name=_ENGINE,
                kernel_name="python3",
                progress_bar=False,
                cwd=str(folder),
                execution_timeout=_CELL_SECONDS,
                extra_arguments=["--IPKernelApp.log_level=ERROR"],
                on_cell_start=lambda cell, cell_index: on_cell(cell_index + 1, len(master.cells)),
                allow_errors=go_on,
            )
        except PapermillExecutionError as failure:
            error = f"cell {failure.cell_index}: {failure.ename}: {failure.evalue}"
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
    executed = nbformat.read(output, as_version=4) if output.is_file() else master
    return Executed(executed, time.perf_counter() - started, error)


def seconds_to_record(before: Iterable[Executed] = ()) -> float:
    """Return the seconds left for pictures of explorers, after the notebooks of the lab that were executed before."""
    outputs = [output for done in before for cell in done.notebook.cells for output in cell.get("outputs", [])]
    spent = sum(output.data[STATES]["seconds"] for output in outputs if STATES in output.get("data", {}))
    return max(0.0, _RECORDING_SECONDS - spent)


def audits(notebook: NotebookNode) -> list[dict[str, Any]]:
    """Return the verdicts that an executed notebook printed, in order."""
    return [record for _, record in audited_cells(notebook)]


def audited_cells(notebook: NotebookNode) -> list[tuple[str, dict[str, Any]]]:
    """Return the same verdicts, each with the id of its cell."""
    outputs = [(cell.get("id", ""), output) for cell in notebook.cells for output in cell.get("outputs", [])]
    return [(cell, output["data"][MIME]) for cell, output in outputs if MIME in output.get("data", {})]
