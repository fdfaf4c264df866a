"""The preprocessors with which `nbgrader autograde` and formgrader's autograde button grade through the wall.

`nbgrader_config.py` names them; `WalledExecute` replaces nbgrader's Execute.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode, from_dict
from nbformat.v4 import new_output
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.preprocessors import Execute, NbGraderPreprocessor, SaveCells
from traitlets import Unicode

from threeloops_grader.authoring.labs import Lab, find_lab, grade_id
from threeloops_grader.authoring.manifest import REFLECTION, test_title
from threeloops_grader.authoring.regions import without
from threeloops_grader.classroom.marking.rubric import criterion_cells, criterion_title, task_points
from threeloops_grader.grading.grade import Options, execute
from threeloops_grader.grading.records import WITHOUT_ISOLATION, short_notes
from threeloops_grader.grading.scoring import Report
from threeloops_grader.sandbox.pool import choose
from threeloops_grader.worklist.grade_class import decides
from threeloops_grader.worklist.store import Executed, Key, RecordStore

__all__ = ["HideTests", "ReflectionPoints", "SaveCellsAndReflection", "WalledExecute", "warn_of_no_isolation"]


class WalledExecute(Execute):
    """nbgrader's Execute, with the student's code in a sandbox and the tests on the other side of the wall."""

    sandbox = Unicode("auto", help="auto, bwrap, or none: no isolation, for a machine without bubblewrap.").tag(
        config=True
    )
    executed = Unicode(
        "", help="Folder of submissions that are executed already, as `class grade` names it; the others are executed."
    ).tag(config=True)

    def preprocess(
        self, nb: NotebookNode, resources: ResourcesDict, km: Any = None
    ) -> tuple[NotebookNode, ResourcesDict]:
        """Execute a submission. Raises MachineFault if, for example, the machine cannot confine submissions. Then none
        was executed."""
        options = Options(choose(self.sandbox))  # type: ignore[arg-type]
        student = resources["nbgrader"]["student"]
        executed = self._executed(nb, find_lab(resources["nbgrader"]["assignment"]), options)
        for note in short_notes(executed.notes):
            self.log.warning("%s: %s", student, note)
        for cell in nb.cells:
            if cell.cell_type == "code" and (result := executed.cells.get(cell.id)) is not None:
                cell.outputs = from_dict(result["outputs"])
                cell.execution_count = result["execution_count"]
        if options.sandbox == "none":
            self.log.warning("%s: %s", student, WITHOUT_ISOLATION)
            warn_of_no_isolation(nb)
        return nb, resources

    def _executed(self, nb: NotebookNode, lab: Lab, options: Options) -> Executed:
        """Return the executed cells from the store, or else execute the submission."""
        handed_in: tuple[str, bytes] | None = self.parent.parent.handed_in
        if self.executed and handed_in is not None:
            student, content = handed_in
            key = Key.of(student, content, decides(lab, options))
            store = RecordStore(Path(self.executed), lab.slug)
            if (executed := store.load_executed(key)) is not None:
                return executed
        report = Report()
        return Executed.of(execute(nb, lab, options, report), report.notes)


def warn_of_no_isolation(nb: NotebookNode) -> None:
    """Warn of missing isolation in the notebook's metadata, and above each result in every page."""
    nb.metadata.threeloops = {**nb.metadata.get("threeloops", {}), "sandbox": "none"}
    for cell in nb.cells:
        if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("grade"):
            cell.outputs.insert(0, new_output("stream", name="stdout", text=f"[{WITHOUT_ISOLATION}]\n"))


class ReflectionPoints(NbGraderPreprocessor):
    """A plugin that lets formgrader give manual points for the written reflection, if the gradebook has a maximum for
    it, or for each criterion of a rubric, in cells of their own below the reflection."""

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        given = resources["nbgrader"]
        where = given["notebook"], given["assignment"], given["student"]
        at = next((n for n, cell in enumerate(nb.cells) if grade_id(cell) == REFLECTION), None)
        if at is None:
            return nb, resources
        with Gradebook(given["db_url"]) as book:
            with suppress(MissingEntry):
                points = book.find_grade(REFLECTION, *where).max_score
                nb.cells[at].metadata.nbgrader.update(grade=True, points=points)
            points_of = task_points(book, given["assignment"])
            for name in points_of:  # the text may be another one, so somebody has to look at it
                book.find_grade(name, *where).needs_manual_grade = True
            book.db.commit()
        nb.cells[at + 1 : at + 1] = criterion_cells(find_lab(given["assignment"]), points_of)
        return nb, resources


class SaveCellsAndReflection(SaveCells):
    """Save cells, and keep the points of the reflection, which only the gradebook has. nbgrader's SaveCells would take
    them for a removed cell and refuse a second release."""

    def _create_notebook(self, nb: NotebookNode) -> None:
        with suppress(MissingEntry):
            cell = self.gradebook.find_grade_cell(REFLECTION, self.notebook_id, self.assignment_id)
            self.new_grade_cells[REFLECTION] = {"max_score": cell.max_score, "cell_type": cell.cell_type}
        for name, points in task_points(self.gradebook, self.assignment_id).items():
            self.new_task_cells[name] = {"max_score": points, "cell_type": "markdown"}
        super()._create_notebook(nb)


class HideTests(NbGraderPreprocessor):
    """Hide hidden tests on feedback pages, even after the grades are out, and name each part as reports do."""

    def preprocess_cell(
        self, cell: NotebookNode, resources: ResourcesDict, cell_index: int
    ) -> tuple[NotebookNode, ResourcesDict]:
        cell.source = without(cell.source, "HIDDEN TESTS")
        about = cell.metadata.get("nbgrader", {})
        if about.get("task"):
            about.update(title=criterion_title(about["grade_id"]), grade=True)
        elif about.get("grade") or about.get("solution"):
            about["title"] = test_title(about["grade_id"]) + ("" if about.get("grade") else ", your answer")
        return cell, resources
