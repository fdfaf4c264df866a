"""What makes stock `nbgrader autograde`, and the formgrader's button, grade through the wall.

Two preprocessors, named in `nbgrader_config.py`: `RebuildFromMaster` is the first to touch a submission,
`WalledExecute` replaces nbgrader's Execute. Between them every test cell carries an error, so that a test which was
never executed (`--no-execute`, a crash of the harness) scores 0; nbgrader alone would give it full marks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.preprocessors import Execute, NbGraderPreprocessor
from traitlets import Unicode

from grader.engine import Report
from grader.grade import Options, execute
from grader.labs import Lab, course_root, find_lab
from grader.manifest import Kind, manifest, rebuild
from grader.regions import without
from grader.sandbox.pool import choose

_NOT_RUN = "this test was not executed"


class _ForLab(NbGraderPreprocessor):
    root = Unicode(help="The course's folder; the one this package lies in where it is empty.").tag(config=True)

    def lab(self, resources: ResourcesDict) -> Lab:
        """The lab of the assignment at hand. Raises LabError where this course has none of that name."""
        return find_lab(resources["nbgrader"]["assignment"], Path(self.root) if self.root else course_root())


class RebuildFromMaster(_ForLab):
    """Replace a submission by the master's cells and the student's answers; what was restored goes to the log."""

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        """Raises NotThisLab or ValueError: nbgrader then leaves this student ungraded and removes what it copied."""
        refuse_links(Path(resources["metadata"]["path"]))
        trusted = manifest(self.lab(resources))
        rebuilt = rebuild(nb, trusted)
        for note in rebuilt.notes:
            self.log.warning("%s: %s", resources["nbgrader"]["student"], note)
        for cell in rebuilt.notebook.cells:
            if trusted.kind(cell) is Kind.TEST:
                cell.outputs = [new_output("error", ename="NotRun", evalue=_NOT_RUN, traceback=[_NOT_RUN])]
        return rebuilt.notebook, resources


def refuse_links(folder: Path) -> None:
    """nbgrader copies what a symbolic link in a submission points to: nothing outside gets in that way.

    Raises:
        ValueError: a link lies in the folder, or it is one.
    """
    for path in (folder.parent, folder, *folder.rglob("*")):
        if path.is_symlink():
            raise ValueError(f"{folder.parent.name}: {path.name} is a symbolic link; hand in the file itself")


class WalledExecute(Execute):
    """nbgrader's Execute, with the student's code in a sandbox and the tests on the other side of the wall."""

    root = _ForLab.root
    sandbox = Unicode("auto", help="auto, bwrap, or none: no isolation, for a machine without bubblewrap.").tag(
        config=True
    )
    lab = _ForLab.lab

    def preprocess(
        self, nb: NotebookNode, resources: ResourcesDict, km: Any = None
    ) -> tuple[NotebookNode, ResourcesDict]:
        """Raises SandboxError: the machine cannot confine submissions; nothing of theirs was executed."""
        report = Report()
        options = Options(choose(self.sandbox))  # type: ignore[arg-type]
        executed = execute(nb, self.lab(resources), options, report)
        for note in report.notes:
            self.log.warning("%s: %s", resources["nbgrader"]["student"], note)
        done = {cell.id: cell for cell in executed.cells}
        for cell in nb.cells:
            if cell.cell_type == "code" and cell.id in done and done[cell.id].execution_count is not None:
                cell.outputs, cell.execution_count = done[cell.id].outputs, done[cell.id].execution_count
        return nb, resources


class HideTests(NbGraderPreprocessor):
    """For feedback pages: hidden tests stay hidden, also after the grades are out."""

    def preprocess_cell(
        self, cell: NotebookNode, resources: ResourcesDict, cell_index: int
    ) -> tuple[NotebookNode, ResourcesDict]:
        cell.source = without(cell.source, "HIDDEN TESTS")
        return cell, resources
