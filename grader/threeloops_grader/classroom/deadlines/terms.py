"""The rules of a class about time, as pure functions of when a student handed in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from threeloops_grader.classroom.register.extensions import EVERY_LAB, Extension
from threeloops_grader.classroom.register.settings import LatePolicy
from threeloops_grader.submissions.folder import spelling

__all__ = ["Lateness", "Terms"]

_DAY = 86_400


@dataclass(frozen=True)
class Lateness:
    """How late one student's lab is. `due` is this student's own due time, and `share` is the share of the points that
    the lateness costs, after `slip_days` were spent on it."""

    due: datetime | None = None
    extension: str = ""
    seconds: float = 0.0
    slip_days: int = 0
    share: float = 0.0

    def penalty(self, score: float) -> float:
        """Return the points to take from a score that includes manual points. Never negative, nor above the score."""
        return max(0.0, score) * self.share


@dataclass(frozen=True)
class Terms:
    """The late policy, the due dates of labs, when labs were opened, and all extensions. Times are in UTC, without a
    zone, as in nbgrader's gradebook."""

    policy: LatePolicy = field(default_factory=LatePolicy)
    due: Mapping[str, datetime] = field(default_factory=dict)
    opened: Mapping[str, datetime] = field(default_factory=dict)
    extensions: Sequence[Extension] = ()

    @cached_property
    def _of(self) -> dict[tuple[str, str], list[Extension]]:
        """The extensions by student and lab."""
        of: dict[tuple[str, str], list[Extension]] = {}
        for extension in self.extensions:
            of.setdefault((spelling(extension.student), extension.lab), []).append(extension)
        return of

    def due_for(self, student: str, lab: str) -> tuple[datetime | None, str]:
        """Return a student's due time for a lab, and the extension that gives it, or "". Of several extensions the
        latest counts. Without a due date for the class there is none for anybody."""
        due = self.due.get(lab)
        if due is None:
            return None, ""
        extensions = [e for scope in (lab, EVERY_LAB) for e in self._of.get((spelling(student), scope), [])]
        times = [(extension.extended(due, self.opened.get(lab)), str(extension)) for extension in extensions]
        latest, why = max(times, default=(due, ""), key=lambda time: time[0])
        return (latest, why) if latest > due else (due, "")

    def lateness(self, student: str, handed_in: Mapping[str, datetime | None]) -> dict[str, Lateness]:
        """Return how late each lab is. Slip days are spent in the order of the class's due dates, whatever the scores.

        An extension never makes anybody worse: it leaves the order as it is, and a lab that is less late spends fewer
        days, never more.
        """
        free = 0 if self.policy.is_free else self.policy.slip_days
        result = {}
        for lab in sorted(handed_in, key=lambda lab: (self.due.get(lab, datetime.max), lab)):
            due, extension = self.due_for(student, lab)
            time = handed_in[lab]
            seconds = 0.0 if due is None or time is None else max(0.0, (time - due).total_seconds())
            most = free if self.policy.slip_most is None else min(free, self.policy.slip_most)
            spent = min(self.policy.days_late(seconds), most)
            free -= spent
            share = self.policy.share(max(0.0, seconds - spent * _DAY))
            result[lab] = Lateness(due, extension, seconds, spent, share)
        return result
