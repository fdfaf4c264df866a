"""The preprocessors with which stock `nbgrader autograde`, and the formgrader's button, grade through the wall.

`nbgrader_config.py` names them: `RebuildFromMaster` is the first to touch a submission, `WalledExecute` replaces
nbgrader's Execute. Between them every test cell carries an error, so that a test which was never executed
(`--no-execute`, a crash of the harness) scores 0; nbgrader alone would give it full marks.
"""

from pathlib import Path
from typing import Any

from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.preprocessors import Execute, NbGraderPreprocessor
from traitlets import Unicode

from grader.authoring.labs import Lab, course_root, find_lab
from grader.authoring.manifest import Kind, manifest
from grader.authoring.regions import without
from grader.grading.grade import Options, execute
from grader.grading.records import WITHOUT_ISOLATION, short_notes
from grader.grading.scoring import Report
from grader.sandbox.pool import choose
from grader.submissions.rebuild import rebuild

__all__ = ["HideTests", "NOT_RUN", "RebuildFromMaster", "WalledExecute"]

NOT_RUN = "NotRun"
"""The error that a test cell carries until it is executed."""

_NOT_RUN = "this test was not executed"


class _ForLab(NbGraderPreprocessor):
    root = Unicode(help="The course's folder; by default the one that holds this package.").tag(config=True)

    def lab(self, resources: ResourcesDict) -> Lab:
        """The lab of this assignment. Raises LabError if the course has none of that name."""
        return find_lab(resources["nbgrader"]["assignment"], Path(self.root) if self.root else course_root())


class RebuildFromMaster(_ForLab):
    """Replaces a submission by the master's cells with the student's answers; logs what was restored."""

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        """Raises NotThisLab: nbgrader then leaves this student ungraded and removes what it copied."""
        trusted = manifest(self.lab(resources))
        rebuilt = rebuild(nb, trusted)
        for note in short_notes(rebuilt.notes):
            self.log.warning("%s: %s", resources["nbgrader"]["student"], note)
        for cell in rebuilt.notebook.cells:
            if trusted.kind(cell) is Kind.TEST:
                cell.outputs = [new_output("error", ename=NOT_RUN, evalue=_NOT_RUN, traceback=[_NOT_RUN])]
        return rebuilt.notebook, resources


class WalledExecute(_ForLab, Execute):
    """nbgrader's Execute, with the student's code in a sandbox and the tests on the other side of the wall."""

    sandbox = Unicode("auto", help="auto, bwrap, or none: no isolation, for a machine without bubblewrap.").tag(
        config=True
    )

    def preprocess(
        self, nb: NotebookNode, resources: ResourcesDict, km: Any = None
    ) -> tuple[NotebookNode, ResourcesDict]:
        """Raises MachineFault if, for example, the machine cannot confine submissions; none was executed then."""
        report = Report()
        options = Options(choose(self.sandbox))  # type: ignore[arg-type]
        student = resources["nbgrader"]["student"]
        executed = execute(nb, self.lab(resources), options, report)
        for note in short_notes(report.notes):
            self.log.warning("%s: %s", student, note)
        done = {cell.id: cell for cell in executed.cells}
        for cell in nb.cells:
            if cell.cell_type == "code" and cell.id in done and done[cell.id].execution_count is not None:
                cell.outputs, cell.execution_count = done[cell.id].outputs, done[cell.id].execution_count
        if options.sandbox == "none":
            self._warn_of_no_isolation(nb, student)
        return nb, resources

    def _warn_of_no_isolation(self, nb: NotebookNode, student: str) -> None:
        """Warn of missing isolation in the log, in the notebook's metadata, and above each result in every page."""
        self.log.warning("%s: %s", student, WITHOUT_ISOLATION)
        nb.metadata.threeloops = {**nb.metadata.get("threeloops", {}), "sandbox": "none"}
        for cell in nb.cells:
            if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("grade"):
                cell.outputs.insert(0, new_output("stream", name="stdout", text=f"[{WITHOUT_ISOLATION}]\n"))


class HideTests(NbGraderPreprocessor):
    """For feedback pages: hidden tests stay hidden, also after the grades are out."""

    def preprocess_cell(
        self, cell: NotebookNode, resources: ResourcesDict, cell_index: int
    ) -> tuple[NotebookNode, ResourcesDict]:
        cell.source = without(cell.source, "HIDDEN TESTS")
        return cell, resources
