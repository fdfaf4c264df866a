"""A class as docs/teaching/deadlines.md describes it: who is graded, and with how many points. In float64, without any
code of the grader.

Times are hours after the class's due date of the lab. The class had another lab before, `EARLIER`.
"""

import math
from dataclasses import dataclass, field

LAB, EARLIER = "90_toy", "80_before"
DUE = {EARLIER: -300.0, LAB: 0.0}
OPENED = {LAB: -240.0}
EVERY_LAB = "*"
REFLECTION = 10.0
REFUSED = ("cut off", "of another lab", "not a notebook")
UNUSABLE = "a PDF"
"""A file from which no notebook can be collected."""
POINTS = {
    "reference": {"mean": (40, 40), "rescale": (60, 60)},
    "untouched": {"mean": (0, 0), "rescale": (0, 0)},
    "mistaken": {"mean": (0, 0), "rescale": (60, 60)},
    "accepts an empty list": {"mean": (0, 40), "rescale": (60, 60)},
    "ignores the sign": {"mean": (40, 40), "rescale": (15, 60)},
}
"""Automatic points per exercise, by the tests of the lab as they were and as they are after a repair."""


@dataclass(frozen=True)
class HandIn:
    """One attempt. Two with the same `text` are the same notebook."""

    kind: str
    text: bytes = field(repr=False)
    time: float

    @property
    def is_refused(self) -> bool:
        return self.kind in REFUSED


@dataclass
class Graded:
    """The attempt that was graded, and by which version of each exercise's tests."""

    attempt: HandIn
    versions: dict[str, int]

    @property
    def points(self) -> float:
        return float(sum(self.of(exercise) for exercise in self.versions))

    def of(self, exercise: str) -> int:
        return POINTS[self.attempt.kind][exercise][self.versions[exercise]]


@dataclass
class Regrade:
    """A regrade of one exercise by the tests in `versions`, of the submissions in `entries`."""

    exercise: str
    versions: dict[str, int]
    keep_higher: bool
    entries: dict[str, Graded]


@dataclass
class Policy:
    percent: float = 0.0
    most: float = 100.0
    grace_minutes: float = 0.0
    closes_days: float = math.inf
    slip_days: int = 0
    slip_most: float = math.inf

    def late_days(self, hours: float) -> int:
        return max(0, math.ceil((hours - self.grace_minutes / 60) / 24 - 1e-12))

    def share(self, hours: float) -> float:
        """The share that is lost `hours` after the due time."""
        if hours - self.grace_minutes / 60 > self.closes_days * 24:
            return 1.0
        return min(self.percent * self.late_days(hours), self.most) / 100


@dataclass
class ClassModel:
    """All that an instructor and the students have done. `attempts` are a student's, oldest first; `placed` is the one
    that counts for the student, and `graded` what was graded of it. A regrade that was cut off is `pending`."""

    roster: list[str]
    dropped: list[str] = field(default_factory=list)
    policy: Policy = field(default_factory=Policy)
    rule: str = "last"
    extensions: dict[tuple[str, str], tuple[str, float]] = field(default_factory=dict)
    groups: dict[tuple[str, str], str] = field(default_factory=dict)
    earlier: dict[str, float] = field(default_factory=dict)
    attempts: dict[str, list[HandIn]] = field(default_factory=dict)
    placed: dict[str, HandIn] = field(default_factory=dict)
    unusable: set[str] = field(default_factory=set)
    graded: dict[str, Graded] = field(default_factory=dict)
    manual: dict[str, float] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=lambda: {"mean": 0, "rescale": 0})
    pending: Regrade | None = None

    def collect(self, student: str, kind: str, text: bytes, time: float) -> bool:
        """A newer attempt replaces the one before it, unless only the first ones count. Returns whether it does."""
        if kind == UNUSABLE:
            self.unusable.add(student)
            return True
        self.unusable.discard(student)
        own = self.attempts.setdefault(student, [])
        if self.rule.startswith("first") and len(own) >= int(self.rule.split()[1]):
            return False
        own.append(HandIn(kind, text, time))
        self.place(student, own[-1])
        return True

    def place(self, student: str, attempt: HandIn) -> None:
        if self.placed.get(student) is not attempt:
            self.placed[student] = attempt
            self.graded.pop(student, None)

    def choose(self, rule: str) -> None:
        """Another rule lets another attempt count at once; the best one is known when all are graded."""
        if rule not in ("best", self.rule):
            for student, own in self.attempts.items():
                self.place(student, own[-1] if rule == "last" else own[: int(rule.split()[1])][-1])
        self.rule = rule

    def grade(self, again: bool = False) -> None:
        if self.rule == "best":
            for student, own in self.attempts.items():
                if len(own) > 1:
                    self.place(student, self._best(student, own))
        for student, attempt in self.placed.items():
            if not attempt.is_refused and (again or student not in self.graded):
                self.graded[student] = Graded(attempt, dict(self.versions))

    def _best(self, student: str, own: list[HandIn]) -> HandIn:
        """The one with the most automatic points after penalty and slip days; of equal ones the earliest. If all were
        refused, the latest."""
        if all(attempt.is_refused for attempt in own):
            return own[-1]
        return max(
            (attempt for attempt in own if not attempt.is_refused), key=lambda a: (self._value(student, a), -a.time)
        )

    def _value(self, student: str, attempt: HandIn) -> float:
        points = Graded(attempt, self.versions).points
        return round(points * (1 - self.lateness(student, attempt.time)[0]), 9)

    def regrade(self, regrade: Regrade) -> None:
        """The repaired test decides, for those whose graded submission is still the one that it was."""
        for student, entry in regrade.entries.items():
            if self.graded.get(student) is entry:
                version = regrade.versions[regrade.exercise]
                after = Graded(entry.attempt, {**entry.versions, regrade.exercise: version})
                if not (regrade.keep_higher and after.points < entry.points):
                    entry.versions[regrade.exercise] = version

    def mates(self, student: str, lab: str) -> list[str]:
        """Those who share the student's submissions of a lab. A group for one lab goes before one for every lab."""
        in_lab = {name for name, scope in self.groups if scope == lab}
        scope = lab if student in in_lab else EVERY_LAB
        group = self.groups.get((student, scope))
        if group is None:
            return [student]
        members = [name for (name, where), label in self.groups.items() if (where, label) == (scope, group)]
        return [name for name in members if scope == lab or name not in in_lab]

    def owner(self, student: str) -> str | None:
        """Whose hand-in counts: the latest of the group, or the earliest of the same notebook."""
        own = [(self.placed[name].time, name) for name in self.mates(student, LAB) if name in self.placed]
        if not own:
            return None
        text = self.placed[max(own)[1]].text
        return min(entry for entry in own if self.placed[entry[1]].text == text)[1]

    def due(self, student: str, lab: str) -> float:
        times = [DUE[lab]]
        for scope in (lab, EVERY_LAB):
            kind, value = self.extensions.get((student, scope), ("", 0.0))
            if kind == "due":
                times.append(value)
            elif kind == "hours":
                times.append(DUE[lab] + value)
            elif kind == "factor" and lab in OPENED:
                times.append(OPENED[lab] + value * (DUE[lab] - OPENED[lab]))
        return max(times)

    def lateness(self, student: str, time: float) -> tuple[float, int]:
        """The share that is lost for a hand-in of the lab at a time, and the slip days that are left after it.

        Slip days are spent in the order of the due dates, one for each late day begun. Each one is worth a day.
        """
        before = [self.earlier[name] for name in self.mates(student, EARLIER) if name in self.earlier]
        handed_in = ({EARLIER: max(before)} if before else {}) | {LAB: time}
        free = self.policy.slip_days
        share = 0.0
        for lab in sorted(handed_in, key=lambda name: DUE[name]):
            late = max(0.0, handed_in[lab] - self.due(student, lab))
            spent = int(min(self.policy.late_days(late), free, self.policy.slip_most))
            free -= spent
            share = self.policy.share(max(0.0, late - 24 * spent))
        return share, free

    def rows(self) -> dict[str, tuple[str, float | None]]:
        """The status and the score of everybody on the roster."""
        rows: dict[str, tuple[str, float | None]] = {}
        for student in self.roster:
            owner = self.owner(student)
            if owner is None and not self.unusable & {*self.mates(student, LAB)}:
                rows[student] = "missing", 0.0
            elif owner is None or owner not in self.graded:
                rows[student] = "ungraded", None
            else:
                share, _ = self.lateness(student, self.placed[owner].time)
                rows[student] = "graded", (self.graded[owner].points + self.manual.get(owner, 0.0)) * (1 - share)
        return rows
