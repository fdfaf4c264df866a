"""Enter a roster, due dates and points into nbgrader's gradebook."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry, SubmittedAssignment
from sqlalchemy.exc import SQLAlchemyError

from threeloops_grader.authoring.labs import LabError, course_root
from threeloops_grader.classroom.register.roster import Student
from threeloops_grader.classroom.register.settings import Settings
from threeloops_grader.machine.child_process import changed_environment, environment
from threeloops_grader.submissions.folder import spelling

__all__ = ["apply_due_dates", "dates_in_gradebook", "enrol", "gradebook", "set_reflection_points"]


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


def dates_in_gradebook(book: Gradebook, settings: Settings) -> dict[str, str]:
    """Return the due dates that somebody changed in formgrader after `class init` wrote them."""
    dates = {}
    for slug in sorted(settings.due):
        with suppress(MissingEntry):
            date = book.find_assignment(slug).duedate
            if date is not None and date != settings.due_date(slug):
                dates[slug] = date.replace(tzinfo=UTC).isoformat()
    return dates


def apply_due_dates(book: Gradebook, settings: Settings) -> None:
    """Write the due dates."""
    for slug in sorted(settings.due):
        book.update_or_create_assignment(slug, duedate=settings.due_date(slug))


def set_reflection_points(book: Gradebook, slug: str, points: float) -> None:
    """Give the written reflection a maximum, for manual points in formgrader. 0 removes it.

    Raises LabError: the maximum is changed after submissions were graded, which would change what their points mean.
    """
    try:
        present = book.find_grade_cell("reflection", slug, slug).max_score
    except MissingEntry:
        present = 0.0
    if present == points:
        return
    if _has_submissions(book, slug):
        raise LabError(
            f"the reflection of {slug} has {present:g} points and there are submissions; {points:g} is too late. "
            f"Run `threeloops class init` with --reflection {present:g}"
        )
    if points:
        book.update_or_create_grade_cell("reflection", slug, slug, max_score=points, cell_type="markdown")
    else:
        book.db.delete(book.find_grade_cell("reflection", slug, slug))
        book.db.commit()


def _has_submissions(book: Gradebook, slug: str) -> bool:
    return bool(
        book.db.query(SubmittedAssignment).filter(SubmittedAssignment.assignment.has(name=slug)).limit(1).count()
    )
