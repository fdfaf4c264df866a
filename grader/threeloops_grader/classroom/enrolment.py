"""Enter a roster, due dates and points into nbgrader's gradebook."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry, SubmittedAssignment
from sqlalchemy.exc import SQLAlchemyError

from threeloops_grader.authoring.labs import LabError, course_root
from threeloops_grader.classroom.register.roster import Student
from threeloops_grader.classroom.register.settings import Settings
from threeloops_grader.machine.child_process import changed_environment, environment
from threeloops_grader.submissions.folder import spelling

__all__ = ["apply_due_dates", "enrol", "gradebook"]


@contextmanager
def gradebook(root: Path | None = None) -> Iterator[Gradebook]:
    """Open the course's gradebook, as nbgrader's own commands find it. Raises LabError if it cannot be used."""
    path = (root or course_root()) / "gradebook.db"
    url = f"sqlite:///{path}"
    try:
        # nbgrader runs `alembic` by name, but it is not on PATH unless the environment is activated.
        with (
            changed_environment({"PATH": environment()["PATH"]}),
            Gradebook(url, "three_loops") as book,
        ):
            yield book
    except SQLAlchemyError as error:
        reason = str(error).partition("\n")[0]
        raise LabError(f"the gradebook {path} cannot be used ({reason}); nothing more was written to it") from error


def enrol(book: Gradebook, students: list[Student]) -> list[str]:
    """Enter the students; returns ids that the gradebook has and the roster has not. Nobody is removed."""
    enrolled = {spelling(student.id): student.id for student in book.students}
    for student in students:
        book.update_or_create_student(
            enrolled.get(spelling(student.id), student.id),
            first_name=student.first_name,
            last_name=student.last_name,
            email=student.email,
        )
    return sorted(set(enrolled) - {spelling(student.id) for student in students})


def apply_due_dates(book: Gradebook, settings: Settings) -> list[str]:
    """Write the due dates. Returns the labs with graded submissions, whose penalties are still the old ones."""
    graded = []
    for slug in sorted(settings.due):
        try:
            before = book.find_assignment(slug).duedate
        except MissingEntry:
            before = None
        book.update_or_create_assignment(slug, duedate=settings.due_date(slug))
        if before != settings.due_date(slug) and _has_submissions(book, slug):
            graded.append(slug)
    return graded


def _has_submissions(book: Gradebook, slug: str) -> bool:
    return bool(
        book.db.query(SubmittedAssignment).filter(SubmittedAssignment.assignment.has(name=slug)).limit(1).count()
    )
