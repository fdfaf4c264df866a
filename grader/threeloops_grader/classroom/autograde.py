"""nbgrader's autograde with guarantees that none of its options offers.

nbgrader copies a submission before any preprocessor sees it, treats every exception as the student's fault, and skips
every student who has a folder in `autograded/`. `nbgrader_config.py` installs this class.
"""

import glob
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nbconvert.exporters import Exporter, NotebookExporter
from nbformat import NotebookNode
from nbformat.v4 import new_output
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import api, autogradeapp
from nbgrader.converters import Autograde
from nbgrader.converters.base import BaseConverter
from nbgrader.utils import rmtree
from traitlets import Type

from threeloops_grader.authoring.labs import LabError, find_lab
from threeloops_grader.authoring.manifest import Kind, manifest
from threeloops_grader.classroom.exchange.times import utc
from threeloops_grader.classroom.results.handins import NOT_RUN, is_another, was_executed
from threeloops_grader.grading.records import short_notes
from threeloops_grader.machine.faults import MachineFault, cause
from threeloops_grader.release.files import files_below
from threeloops_grader.submissions.folder import TIMESTAMP, below, is_student, student_name
from threeloops_grader.submissions.parse import parse
from threeloops_grader.submissions.reading import Submission, content
from threeloops_grader.submissions.rebuild import rebuild
from threeloops_grader.submissions.submitted import BadSubmission

__all__ = ["SECRET", "install"]

SECRET = "submission_secret.txt"
"""The file with which the exchange gives feedback only to the student who handed in the submission."""

_MAX_SECRET = 1024

_NOT_RUN_TEXT = "this test was not executed"


class _Stop(BaseException):
    """Ends the run. Not an Exception: nbgrader would take it for a fault of one submission and grade the next."""


class _SubmissionExporter(NotebookExporter):
    """An exporter that takes a submission as it was read and rebuilt, and treats nbgrader's own copy of one as nbgrader
    does."""

    def from_file(
        self, file_stream: Any, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[str, dict[str, Any]]:
        if not self.parent._sanitizing:
            return super().from_file(file_stream, resources, **kw)
        return self.from_notebook_node(self.parent._rebuilt_notebook(), resources, **kw)


class _Brief(logging.Filter):
    """Leaves out the traceback of a refused submission, since the line before it says why it was refused."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        is_traceback = text.startswith("Traceback ") and f"{BadSubmission.__name__}: " in text
        return not is_traceback and "see the the above traceback" not in text


class _LeavesFiles(BaseConverter):
    """Copies the timestamp and the secret of a submission, where nbgrader would copy all of the student's files.

    No graded cell sees those, and one of them can be in the place of a file of the lab.
    """

    def init_assignment(self, assignment_id: str, student_id: str) -> None:
        source, target = (Path(at(assignment_id, student_id)) for at in (self._format_source, self._format_dest))
        target.mkdir(parents=True, exist_ok=True)
        if (source / TIMESTAMP).is_file():
            (target / TIMESTAMP).unlink(missing_ok=True)  # that of an earlier run is read-only
            shutil.copyfile(source / TIMESTAMP, target / TIMESTAMP)
        if (source / SECRET).is_file() and (source / SECRET).stat().st_size <= _MAX_SECRET:
            shutil.copyfile(source / SECRET, target / SECRET)  # `nbgrader release_feedback` needs it
        of_lab = Path(self.coursedir.format_path(self.coursedir.source_directory, ".", assignment_id))
        expected = {f"{assignment_id}.ipynb", TIMESTAMP, SECRET} | files_below(of_lab)
        for path, status in below(source):  # few enough: `require_plain_files` has counted them
            name = path.relative_to(source).as_posix()
            if stat.S_ISREG(status.st_mode) and name not in expected and not name.startswith("."):
                told = student_name(student_id), student_name(name)
                self.log.warning("%s: %s is not graded and stays in submitted/", *told)


class _GuardedAutograde(Autograde, _LeavesFiles):
    """Autograde that checks a submission before it copies it, and stops at a fault of the machine.

    A run that stops restores the gradebook's state from before that student, and ends with exit code 2.
    """

    notebooks: list[str]
    handed_in: tuple[str, bytes] | None = None
    """The student's name and the file that is being graded, as `threeloops grade` reads them."""
    exporter_class = Type(_SubmissionExporter, klass=Exporter).tag(config=True)

    def init_notebooks(self) -> None:
        """Find the notebooks, also below a folder like `[ab]`, whose name nbgrader takes for a pattern."""
        wanted = self._format_source(self.coursedir.assignment_id, self.coursedir.student_id)
        folders = [wanted] if os.path.isdir(wanted) else glob.glob(wanted)
        pattern = f"{self.coursedir.notebook_id}.ipynb"
        notebooks_in = {folder: glob.glob(os.path.join(glob.escape(folder), pattern)) for folder in folders}
        self.assignments = {folder: notebooks for folder, notebooks in notebooks_in.items() if notebooks}
        for folder in (folder for folder in folders if not notebooks_in[folder]):
            self.log.warning("%s holds no notebook; nobody is graded there", folder)
        if not self.assignments:
            super().init_notebooks()  # names what might have been meant

    def convert_notebooks(self) -> None:
        brief = _Brief()
        self.log.addFilter(brief)
        try:
            super().convert_notebooks()
        except _Stop as stop:
            self.log.error("%s", stop)
            raise SystemExit(2) from stop
        finally:
            self.log.removeFilter(brief)

    def init_destination(self, assignment_id: str, student_id: str) -> bool:
        """Check the submission before it is copied. Raises BadSubmission, after which nbgrader continues with the next
        student."""
        if student_id in self.coursedir.student_id_exclude.split(","):
            return False
        self._at = (assignment_id, student_id)
        self._is_new = False
        with self._stopping():
            self._is_new = self._is_not_graded()
            self._read()
            self._leave_out_other_notebooks()
            self._forget_unfinished()
            self._forget_another()
        return super().init_destination(assignment_id, student_id)

    def init_assignment(self, assignment_id: str, student_id: str) -> None:
        with self._stopping():
            super().init_assignment(assignment_id, student_id)
            stamp = Path(self._format_source(assignment_id, student_id), TIMESTAMP)
            written = stamp.read_text(encoding="ascii").strip() if stamp.is_file() else ""
            with self._gradebook() as gradebook:  # without a time, nbgrader leaves that of an earlier submission there
                time = utc(written) if written else None
                gradebook.update_or_create_submission(assignment_id, student_id, timestamp=time)

    def convert_single_notebook(self, notebook_filename: str) -> None:
        with self._stopping():
            super().convert_single_notebook(notebook_filename)

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Stop the run at any exception that is not about the submission."""
        try:
            yield
        except BadSubmission:
            raise
        except Exception as error:
            self._undo()
            why = str(error) if isinstance(error, (MachineFault, LabError)) else cause(error)
            where = f"grading stopped at {student_name(self._at[1])}"
            raise _Stop(f"{where}, and nobody's points were changed: {why}") from error

    def _read(self) -> None:
        """Read and rebuild the submission, once. A student whose file is refused still gets a row in the gradebook."""
        assignment_id, student_id = self._at
        folder = Path(self._format_source(assignment_id, student_id))
        name = student_name(student_id)
        lab = find_lab(assignment_id)
        try:
            handed_in = content(Submission(name, folder / f"{lab.slug}.ipynb"), folder.parent.parent)
            notebook = parse(handed_in)
            self.handed_in = (name, handed_in)
            self._trusted = manifest(lab)
            self._rebuilt = rebuild(notebook, self._trusted)
        except BadSubmission as error:
            self.log.error("%s: %s", name, error)
            if is_student(name):
                with self._gradebook() as gradebook:
                    gradebook.update_or_create_student(student_id)
            raise

    def _rebuilt_notebook(self) -> NotebookNode:
        """Return the submission in the master's shape. Logs what was restored.

        Every test cell carries an error until it is executed, so a cell that was never executed (`--no-execute`, a
        crash of the harness) scores 0. nbgrader alone would give it full marks.
        """
        for note in short_notes(self._rebuilt.notes):
            self.log.warning("%s: %s", self._at[1], note)
        for cell in self._rebuilt.notebook.cells:
            if self._trusted.kind(cell) is Kind.TEST:
                cell.outputs = [new_output("error", ename=NOT_RUN, evalue=_NOT_RUN_TEXT, traceback=[_NOT_RUN_TEXT])]
        return self._rebuilt.notebook

    def _leave_out_other_notebooks(self) -> None:
        """Keep only the lab's own: nbgrader's database may not take the names of the others."""
        lab, student = self._at
        for path in (p for p in self.notebooks if os.path.basename(p) != f"{lab}.ipynb"):
            told = student_name(student), student_name(os.path.basename(path))
            self.log.warning("%s: %s is not a notebook of this lab; it is not graded", *told)
        self.notebooks = [path for path in self.notebooks if os.path.basename(path) == f"{lab}.ipynb"]

    def _forget_unfinished(self) -> None:
        """Remove a killed run's files for a student, because nbgrader would take the submission for graded."""
        assignment_id, student_id = self._at
        folder = Path(self._format_dest(assignment_id, student_id))
        whole = self.coursedir.notebook_id == "*"
        if whole and folder.exists() and not was_executed(folder / f"{assignment_id}.ipynb"):
            self.log.warning("%s: an earlier run was cut off here; grading it again", student_name(student_id))
            rmtree(str(folder))

    def _forget_another(self) -> None:
        """Remove the graded copy of a submission that another one has replaced, regardless of its time. nbgrader
        recognises another submission only by a later time."""
        assignment_id, student_id = self._at
        source, graded = (Path(at(assignment_id, student_id)) for at in (self._format_source, self._format_dest))
        name = f"{assignment_id}.ipynb"
        if self.coursedir.notebook_id != "*" or not (graded / name).is_file():
            return
        if is_another(source, graded, assignment_id):
            self.log.warning("%s: another submission than the one that was graded", student_name(student_id))
            rmtree(str(graded))

    def _undo(self) -> None:
        """Remove the files that this run wrote for an unfinished submission. Points of earlier runs stay."""
        folder = Path(self._format_dest(*self._at))
        with suppress(OSError):
            if folder.exists():
                rmtree(str(folder))
        if self._is_new:
            try:
                with self._gradebook() as gradebook, suppress(MissingEntry):
                    gradebook.remove_submission(*self._at)
            except Exception as error:  # the gradebook may be what failed
                self.log.error("the unfinished entry of %s stays in the gradebook (%s)", self._at[1], error)

    def _is_not_graded(self) -> bool:
        with self._gradebook() as gradebook, suppress(MissingEntry):
            gradebook.find_submission(*self._at)
            return False
        return True

    def _gradebook(self) -> Gradebook:
        return Gradebook(self.coursedir.db_url, self.coursedir.course_id)


def install() -> None:
    """Have nbgrader's command and formgrader's button use GuardedAutograde, for which they have no option."""
    autogradeapp.Autograde = api.Autograde = _GuardedAutograde
