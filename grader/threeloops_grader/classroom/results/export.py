"""nbgrader's CSV export with correctly quoted cells, none of which a spreadsheet executes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.plugins import ExportPlugin
from threeloops.files import replace_text

from threeloops_grader.classroom.deadlines.penalties import Penalties
from threeloops_grader.classroom.exchange.uncollected import uncollected
from threeloops_grader.machine.terminal import encodable
from threeloops_grader.pages.spreadsheet import to_csv
from threeloops_grader.submissions.folder import spelling

__all__ = ["SafeCsv"]

_COLUMNS = (
    "assignment,duedate,timestamp,student_id,last_name,first_name,email,raw_score,late_submission_penalty,score,max_score"
).split(",")


class SafeCsv(ExportPlugin):
    """The columns of nbgrader's own CsvExportPlugin, which joins texts with commas and quotes none. Late penalties are
    those of the class now, not those that were right when a submission was graded.

    A submission without any graded test has no score here, where nbgrader writes 0.
    """

    def export(self, gradebook: Gradebook) -> None:
        """Write the scores to `--to`, by default grades.csv, whole or not at all."""
        path = Path(self.to or "grades.csv")
        self.log.info("Exporting grades to %s", path)
        text = to_csv([_COLUMNS, *([_plain(value) for value in row] for row in self._rows(gradebook))])
        replace_text(path, encodable(text))

    def _rows(self, gradebook: Gradebook) -> Iterator[list[Any]]:
        penalties = Penalties(gradebook, Path(self.config.CourseDirectory.root))
        penalties.refresh()
        assignments = set(map(str, self.assignment))
        students = set(map(str, self.student))
        root = Path(self.config.CourseDirectory.root)
        for assignment in gradebook.assignments:
            unusable = uncollected(root, assignment.name)
            for student in gradebook.students:
                if (assignments and assignment.name not in assignments) or (students and student.id not in students):
                    continue
                timestamp, *scores = _score(gradebook, penalties, assignment.name, student.id, unusable)
                who = [student.id, student.last_name, student.first_name, student.email]
                yield [assignment.name, assignment.duedate, timestamp, *who, *scores, assignment.max_score]


def _plain(value: Any) -> str | float:
    if isinstance(value, (str, float)):
        return value
    return "" if value is None else str(value)


def _score(
    gradebook: Gradebook, penalties: Penalties, assignment: str, student: str, unusable: Mapping[str, str]
) -> tuple[Any, ...]:
    """Return the timestamp, raw score, penalty and score of the submission that counts for a student, who may be in a
    group. A missing submission counts 0, as in nbgrader. One that was handed in but not graded has no score, nor has
    one whose file was `unusable`."""
    hand_in = penalties.counting(student, assignment)
    try:
        submission = gradebook.find_submission(assignment, student if hand_in is None else hand_in.student)
    except MissingEntry:
        mates = penalties.hand_ins.mates(student, assignment)
        if hand_in is None and not any(spelling(mate) in unusable for mate in mates):
            return None, 0.0, 0.0, 0.0
        return hand_in.time if hand_in else None, None, None, None
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
    if grades and all(g.auto_score is None and g.manual_score is None for g in grades):
        return submission.timestamp, None, None, None
    penalty = penalties.penalty(student, submission)
    return submission.timestamp, submission.score, penalty, max(0.0, submission.score - penalty)
