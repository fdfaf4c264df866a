"""Find when each student handed in each lab, and whose hand-in counts for a group."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

from nbgrader.api import Assignment, Gradebook, SubmittedAssignment

from threeloops_grader.classroom.exchange.times import noted_time
from threeloops_grader.classroom.register.groups import Groups
from threeloops_grader.submissions.folder import spelling

__all__ = ["HandIn", "HandIns"]


@dataclass(frozen=True)
class HandIn:
    """The hand-in that counts for a student: `student` handed it in, who may be another member of the group.

    `others` handed in a different notebook for the same group, which does not count.
    """

    student: str
    time: datetime | None
    group: str = ""
    others: tuple[str, ...] = ()


class HandIns:
    """All hand-ins of a class: those in the gradebook, and for groups also those that are not graded yet."""

    def __init__(self, book: Gradebook, root: Path, groups: Groups) -> None:
        self._root = root
        self._groups = groups
        self._times: dict[str, dict[str, tuple[str, datetime | None]]] = {}
        rows = book.db.query(Assignment.name, SubmittedAssignment.student_id, SubmittedAssignment.timestamp)
        for lab, student, time in rows.join(SubmittedAssignment, Assignment.id == SubmittedAssignment.assignment_id):
            self._times.setdefault(spelling(student), {})[lab] = (student, time)
        self._labs = [lab for (lab,) in book.db.query(Assignment.name)]
        self._of_group: dict[tuple[str, str], HandIn | None] = {}

    @cached_property
    def _folders(self) -> dict[str, str]:
        folder = self._root / "submitted"
        return {spelling(path.name): path.name for path in folder.iterdir()} if folder.is_dir() else {}

    def folder(self, student: str) -> str:
        """Return the name of a student's folder in `submitted/`, which may spell the id in another way."""
        if (self._root / "submitted" / student).is_dir():
            return student
        return self._folders.get(spelling(student), student)

    def times(self, student: str) -> dict[str, datetime | None]:
        """Return the times of a student's labs, of which those of groups may be another member's."""
        counting = {lab: self.counting(student, lab) for lab in self._labs}
        return {lab: hand_in.time for lab, hand_in in counting.items() if hand_in is not None}

    def mates(self, student: str, lab: str) -> list[str]:
        """Return the students who share a student's hand-in, and the student."""
        return self._groups.of(student, lab)[1]

    def counting(self, student: str, lab: str) -> HandIn | None:
        """Return the hand-in that counts for a student, or None if nobody handed in.

        The latest one of a group counts. Of the same notebook that several members handed in, the earliest counts.
        """
        group, mates = self._groups.of(student, lab)
        if not group:
            own = self._times.get(spelling(student), {}).get(lab)
            return None if own is None else HandIn(*own)
        if (lab, mates[0]) not in self._of_group:
            self._of_group[lab, mates[0]] = self._latest(group, mates, lab)
        return self._of_group[lab, mates[0]]

    def _latest(self, group: str, mates: Sequence[str], lab: str) -> HandIn | None:
        hand_ins = [hand_in for mate in mates if (hand_in := self._hand_in(mate, lab)) is not None]
        if not hand_ins:
            return None
        latest = max(hand_ins, key=_by_time)
        equal = [hand_in for hand_in in hand_ins if hand_in[2] == latest[2]]
        name, time, _ = min(equal, key=_by_time)
        others = tuple(sorted(hand_in[0] for hand_in in hand_ins if hand_in not in equal))
        return HandIn(name, time, group, others)

    def _hand_in(self, student: str, lab: str) -> tuple[str, datetime | None, str] | None:
        """Return whose folder or entry it is, the time, and a hash of the notebook."""
        name = self.folder(student)
        folder = self._root / "submitted" / name / lab
        entry = self._times.get(spelling(student), {}).get(lab)
        notebook = folder / f"{lab}.ipynb"
        if notebook.is_file():
            return entry[0] if entry else name, noted_time(folder), hashlib.sha256(notebook.read_bytes()).hexdigest()
        return None if entry is None else (*entry, f"of {entry[0]}")


def _by_time(hand_in: tuple[str, datetime | None, str]) -> tuple[datetime, str]:
    """Order hand-ins by time; those without a time come first, and equal times are ordered by name."""
    return hand_in[1] or datetime.min, hand_in[0]
