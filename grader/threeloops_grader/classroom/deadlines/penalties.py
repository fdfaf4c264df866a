"""Decide late penalties whenever scores are read. nbgrader's gradebook holds copies, for its own pages and exports."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from nbgrader.api import Assignment, Gradebook, SubmittedAssignment, SubmittedNotebook
from sqlalchemy.exc import OperationalError

from threeloops_grader.classroom.deadlines.handed_in import HandIn, HandIns
from threeloops_grader.classroom.deadlines.terms import Lateness, Terms
from threeloops_grader.classroom.register import settings as register
from threeloops_grader.classroom.register.extensions import saved_extensions
from threeloops_grader.classroom.register.groups import Groups, saved_groups
from threeloops_grader.submissions.folder import spelling

__all__ = ["Penalties", "extensions_path", "groups_path"]


def extensions_path(root: Path | None = None) -> Path:
    return register.class_folder(root) / "extensions.json"


def groups_path(root: Path | None = None) -> Path:
    return register.class_folder(root) / "groups.json"


def _read_terms(book: Gradebook, root: Path) -> Terms:
    """Return the rules of a class. A due date that was changed in formgrader counts as the gradebook has it."""
    settings = register.load(root)
    due = {assignment.name: assignment.duedate for assignment in book.assignments if assignment.duedate is not None}
    opened = {lab: time for lab in settings.opened if (time := settings.opening(lab)) is not None}
    return Terms(settings.late, due, opened, saved_extensions(extensions_path(root)))


class Penalties:
    """Compute what lateness costs in a class from the gradebook's times. Without `class/settings.json`, nbgrader's
    own policy applies, and its gradebook has the penalties."""

    def __init__(self, book: Gradebook, root: Path) -> None:
        self._book = book
        self.is_ours = (register.class_folder(root) / "settings.json").is_file()
        self.terms = _read_terms(book, root)
        self.hand_ins = HandIns(book, root, Groups(saved_groups(groups_path(root))))
        self._late: dict[str, dict[str, Lateness]] = {}

    def counting(self, student: str, lab: str) -> HandIn | None:
        """Return the hand-in that counts for a student, if there is one."""
        return self.hand_ins.counting(student, lab)

    def lateness(self, student: str, lab: str) -> Lateness:
        """Return how late a student's lab is, with the slip days that it and all labs before it have spent."""
        if spelling(student) not in self._late:
            self._late[spelling(student)] = self.terms.lateness(student, self.hand_ins.times(student))
        return self._late[spelling(student)].get(lab) or Lateness(*self.terms.due_for(student, lab))

    def lateness_at(self, student: str, lab: str, time: datetime | None) -> Lateness:
        """Return how late a lab would be if the student had handed it in at `time`, and the others as they did."""
        return self.terms.lateness(student, {**self.hand_ins.times(student), lab: time})[lab]

    def slip_days_left(self, student: str) -> int:
        """Return the slip days that a student has not spent, over all labs."""
        self.lateness(student, "")
        return self.terms.policy.slip_days - sum(late.slip_days for late in self._late[spelling(student)].values())

    def penalty(self, student: str, submission: SubmittedAssignment) -> float:
        """Return the points that a student loses for the lateness of a submission, of all its points: also manual ones,
        and those of a regrade."""
        score = float(submission.score or 0.0)
        if not self.is_ours:
            return min(max(0.0, score), float(submission.late_submission_penalty or 0.0))
        return self.lateness(student, submission.name).penalty(score)

    def refresh(self, lab: str | None = None, students: Iterable[str] | None = None) -> int:
        """Write the penalties and extensions of one lab, or of all, to nbgrader's gradebook where they differ.

        Returns how many penalties were changed. If the gradebook is busy or read-only, the copies stay as they are:
        every command of ours computes the penalty itself.
        """
        if not self.is_ours:
            return 0
        wanted = None if students is None else {spelling(student) for student in students}
        scores = [Assignment.name, SubmittedNotebook.score, SubmittedNotebook.late_submission_penalty]
        submission = [SubmittedAssignment.student_id, SubmittedAssignment.timestamp, SubmittedAssignment.extension]
        rows = self._book.db.query(SubmittedNotebook.id, *scores, *submission)
        rows = rows.join(SubmittedAssignment, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
        rows = rows.join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
        if lab is not None:
            rows = rows.filter(Assignment.name == lab)
        changed = 0
        submissions = rows.all()
        with self._book.db.no_autoflush:  # the commit writes all changes, and its failure is caught
            for number, name, score, before, student, time, extension in submissions:
                if wanted is not None and spelling(student) not in wanted:
                    continue
                penalty = self._own(student, name, time).penalty(float(score or 0.0))
                is_other = abs((before or 0.0) - penalty) > 1e-9
                changed += is_other
                if is_other or extension != self._extension(student, name):
                    notebook = self._book.db.get(SubmittedNotebook, number)
                    notebook.late_submission_penalty = penalty or None
                    notebook.assignment.extension = self._extension(student, name)
        try:
            self._book.db.commit()
        except OperationalError:
            self._book.db.rollback()
        return changed

    def _extension(self, student: str, lab: str) -> timedelta | None:
        """Return how much later than the class a student has to hand in, as nbgrader notes it."""
        due, _ = self.terms.due_for(student, lab)
        return due - self.terms.due[lab] if due is not None and due > self.terms.due[lab] else None

    def _own(self, student: str, lab: str, time: datetime | None) -> Lateness:
        """Return how late a student's own submission is, although another member's may count for the group."""
        hand_in = self.counting(student, lab)
        if hand_in is not None and hand_in.time == time:
            return self.lateness(student, lab)
        return self.lateness_at(student, lab, time)
