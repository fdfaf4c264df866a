"""Formgrader for a class: points that are given there go to the class's log, and names may be hidden.

If the class's settings ask for it, marking is anonymous: pseudonyms stand in place of names.

nbgrader hides names in one of its lists, and shows them at a click. Here its pages never receive them: the API behind
the pages answers with pseudonyms, and takes them back for its buttons. Only formgrader uses this API; nbgrader's
commands and `threeloops class` work with the real ids.
"""

import html
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbgrader.api import MissingEntry
from nbgrader.apps.api import NbGraderAPI
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.server_extensions.formgrader import apihandlers, base, handlers
from tornado import web

from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.register import log
from threeloops_grader.classroom.register import settings as register
from threeloops_grader.classroom.register.pseudonyms import pseudonym, require_key

__all__ = ["HideStudent", "install"]

_LOG = "The log names students, so it is hidden while marking is anonymous.\n`threeloops class` and nbgrader print it."
_AWAY = """<h3>Marking is anonymous</h3><p>This page lists students by name, with their points. It opens again after
<code>threeloops class init ROSTER.csv --no-anonymous</code>. <code>threeloops class who PSEUDONYM</code> says whose a
pseudonym is. <a href="{url}">Manual grading</a></p>"""


def _is_anonymous(root: str | Path) -> bool:
    return register.load(Path(root)).anonymous


class HideStudent(NbGraderPreprocessor):
    """Replace the student's name and id on formgrader's page of a submission, and the link to the notebook's file, if
    marking is anonymous."""

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        root = Path(self.config.CourseDirectory.root)
        if "submission_id" in resources and _is_anonymous(root):
            name = pseudonym(require_key(root), resources["assignment_id"], resources["student"])
            resources.update(student=name, last_name=None, first_name=None, notebook_path="")
        return nb, resources


class _Api(NbGraderAPI):
    """nbgrader's API for formgrader's pages, with pseudonyms if marking is anonymous."""

    @property
    def _is_anonymous(self) -> bool:
        return _is_anonymous(self.coursedir.root)

    def _pseudonym(self, assignment: str, student: str) -> str:
        return pseudonym(require_key(Path(self.coursedir.root)), assignment, student)

    def _student(self, assignment: str, name: str) -> str:
        """Return the id of the student with this pseudonym. A real id is returned as it is."""
        with self.gradebook as book:
            ids = {student.id for student in book.students}
        ids |= self.get_submitted_students(assignment)
        return next((student for student in ids if self._pseudonym(assignment, student) == name), name)

    def _hidden(self, assignment: str, entry: dict[str, Any]) -> dict[str, Any]:
        name = self._pseudonym(assignment, entry["student"])
        return {**entry, "student": name, "last_name": name, "first_name": "anonymous"}

    def get_submission(
        self, assignment_id: str, student_id: str, ungraded: Any = None, students: Any = None
    ) -> dict[str, Any] | None:
        if not self._is_anonymous or ungraded is not None:  # get_submissions asks for each, and hides it itself
            return super().get_submission(assignment_id, student_id, ungraded, students)
        real = self._student(assignment_id, student_id)
        entry = super().get_submission(assignment_id, real)
        return entry and self._hidden(assignment_id, entry)

    def get_submissions(self, assignment_id: str) -> list[dict[str, Any]]:
        return self._all_hidden(assignment_id, super().get_submissions(assignment_id))

    def get_notebook_submissions(self, assignment_id: str, notebook_id: str) -> list[dict[str, Any]]:
        return self._all_hidden(assignment_id, super().get_notebook_submissions(assignment_id, notebook_id), order="id")

    def get_student_notebook_submissions(self, student_id: str, assignment_id: str) -> list[dict[str, Any]]:
        if not self._is_anonymous:
            return super().get_student_notebook_submissions(student_id, assignment_id)
        real = self._student(assignment_id, student_id)
        entries = super().get_student_notebook_submissions(real, assignment_id)
        return self._all_hidden(assignment_id, entries, order="name")

    def _all_hidden(
        self, assignment: str, entries: list[dict[str, Any]], order: str = "student"
    ) -> list[dict[str, Any]]:
        """Return the entries with pseudonyms. nbgrader sorts by id, which would tell the order of the roster."""
        if not self._is_anonymous:
            return entries
        return sorted((self._hidden(assignment, entry) for entry in entries), key=lambda entry: entry[order])

    def get_student(self, student_id: str, submitted: Any = None) -> dict[str, Any] | None:
        return None if self._is_anonymous else super().get_student(student_id, submitted)

    def get_students(self) -> list[dict[str, Any]]:
        return [] if self._is_anonymous else super().get_students()

    def get_student_submissions(self, student_id: str) -> list[dict[str, Any]]:
        return [] if self._is_anonymous else super().get_student_submissions(student_id)

    def autograde(self, assignment_id: str, student_id: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return self._for_one(super().autograde, assignment_id, student_id, *args, **kwargs)

    def generate_feedback(self, assignment_id: str, student_id: str | None = None, **kwargs: Any) -> dict[str, Any]:
        return self._for_one(super().generate_feedback, assignment_id, student_id, **kwargs)

    def release_feedback(self, assignment_id: str, student_id: str | None = None, **kwargs: Any) -> dict[str, Any]:
        return self._for_one(super().release_feedback, assignment_id, student_id, **kwargs)

    def collect(self, assignment_id: str, update: bool = True) -> dict[str, Any]:
        return self._without_log(super().collect(assignment_id, update))

    def _for_one(self, action: Any, assignment: str, student: str | None, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Do nbgrader's action for the student with this pseudonym, or with this id."""
        if student is not None and self._is_anonymous:
            student = self._student(assignment, student)
        return self._without_log(action(assignment, student, *args, **kwargs))

    def _without_log(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the result of an action without its log and error, in which students are named."""
        if not self._is_anonymous:
            return result
        return {name: _LOG if name in ("log", "error") and value else value for name, value in result.items()}


def _close(page: Any) -> None:
    """Close a page that lists students by name while marking is anonymous."""
    get = page.get

    def get_if_named(self: Any, *args: str) -> Any:
        if _is_anonymous(self.coursedir.root):
            return self.write(_AWAY.format(url=html.escape(f"{self.base_url}/formgrader/gradebook")))
        return get(self, *args)

    page.get = web.authenticated(get_if_named)


def _log_points(handler: Any) -> None:
    """Have the handler that takes points from the page of a submission append to the class's log."""
    put = handler.put

    def put_and_log(self: Any, grade_id: str) -> None:
        with suppress(MissingEntry):
            old = float(self.gradebook.find_grade_by_id(grade_id).score)
        put(self, grade_id)
        root = Path(self.coursedir.root)
        grade = self.gradebook.find_grade_by_id(grade_id)
        if float(grade.score) == old or not (register.class_folder(root) / "settings.json").is_file():
            return
        points = {grade.student.id: [old, float(grade.score)]}
        try:
            log.append("formgrader", grade.assignment.assignment.name, root, note=grade.name, points=points)
        except LabError as error:  # the points are in the gradebook
            self.log.error("%s", error)

    handler.put = put_and_log


def install() -> None:
    """Put this API and the log behind formgrader's pages, for which nbgrader has no option."""
    if base.NbGraderAPI is not _Api:
        base.NbGraderAPI = _Api
        _log_points(apihandlers.GradeHandler)
        _close(handlers.ManageStudentsHandler)
        _close(handlers.ManageStudentsAssignmentsHandler)
