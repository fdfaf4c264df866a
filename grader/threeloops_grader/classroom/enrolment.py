"""Enter a roster, due dates and points into nbgrader's gradebook."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry
from sqlalchemy.exc import SQLAlchemyError

from threeloops_grader.authoring.labs import LabError, course_root
from threeloops_grader.classroom.register.roster import Student
from threeloops_grader.classroom.register.settings import Settings
from threeloops_grader.machine.child_process import changed_environment, environment
from threeloops_grader.submissions.folder import spelling

__all__ = ["apply_due_dates", "dates_in_gradebook", "enrol", "gradebook"]


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
