"""Write the points of a graded class into nbgrader's gradebook, from one process."""

from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, MissingEntry
from sqlalchemy.exc import SQLAlchemyError

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.classroom.deadlines.penalties import Penalties
from threeloops_grader.classroom.exchange.times import noted_time
from threeloops_grader.grading.records import ClassReport
from threeloops_grader.machine.child_process import changed_environment, environment
from threeloops_grader.submissions.folder import is_student, spelling, student_name

__all__ = ["feed"]


def feed(report: ClassReport, lab: Lab, database: str, submissions: Path | None = None) -> int:
    """Write every record's points as automatic scores; returns the number of students written.

    A student whose submission failed is written too, with 0 points; a folder whose name cannot be a student's is not.
    Manual scores and comments are left alone. A student keeps the entry that the gradebook has under another Unicode
    composition of the same name, as `nbgrader autograde` takes it from the folder.

    Args:
        database: nbgrader's database URL, e.g. `sqlite:///gradebook.db`.
        submissions: the folder that was graded, whose times of handing in decide about late penalties.

    Raises:
        LabError: the gradebook cannot be opened or written, does not know the lab, or knows another version of it.
            Nothing was written then.
    """
    try:
        # nbgrader runs `alembic` by name, but it is not on PATH unless the environment is activated.
        with changed_environment({"PATH": environment()["PATH"]}), Gradebook(database) as gradebook:
            _require_same_tests(gradebook, report, lab)
            enrolled = {spelling(s.id): s.id for s in gradebook.students}
            students = [r for r in report.records if is_student(r.student)]
            for record in students:
                student = enrolled.get(spelling(record.student), record.student)
                gradebook.update_or_create_student(student)
                with gradebook.db.no_autoflush:  # nbgrader adds a submission in parts, and a flush in between warns
                    gradebook.update_or_create_submission(lab.slug, student, **_time(submissions, record.student, lab))
                for test in record.tests:
                    grade = gradebook.find_grade(test.name, lab.slug, lab.slug, student)
                    grade.auto_score = test.score
                    grade.needs_manual_grade = grade.manual_score is not None
            gradebook.db.commit()
            penalties = Penalties(gradebook, lab.root)
            penalties.refresh(None if penalties.terms.policy.slip_days else lab.slug)
    except SQLAlchemyError as error:
        reason = str(error).partition("\n")[0]
        raise LabError(
            f"the gradebook {database} cannot be used ({reason}); expected the URL of nbgrader's database in a folder "
            "that exists, such as sqlite:///gradebook.db. Nothing was written to it"
        ) from error
    return len(students)


def _time(submissions: Path | None, student: str, lab: Lab) -> dict[str, Any]:
    """Return when a submission was handed in, if its folder says so."""
    if submissions is None:
        return {}
    names = {student_name(path.name): path for path in submissions.iterdir()}
    time = noted_time(names.get(student, submissions / student) / lab.slug)
    return {} if time is None else {"timestamp": time}


def _require_same_tests(gradebook: Gradebook, report: ClassReport, lab: Lab) -> None:
    try:
        points = {c.name: c.max_score for c in gradebook.find_notebook(lab.slug, lab.slug).grade_cells}
    except MissingEntry:
        raise LabError(
            f"the gradebook does not know lab {lab.slug}; run `nbgrader generate_assignment {lab.slug}` first"
        ) from None
    graded = {t.name: t.max_score for r in report.records for t in r.tests}
    if not graded.items() <= points.items():
        raise LabError(
            f"the gradebook holds another version of lab {lab.slug} (tests {points}, graded {graded}); "
            f"run `nbgrader generate_assignment {lab.slug} --force` first"
        )
