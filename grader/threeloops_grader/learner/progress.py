"""A learner's progress: points and minutes of each lab, and the next step."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import Exercise, manifest, split_test_id

__all__ = ["Standing", "key", "next_step", "standing"]


@dataclass(frozen=True)
class Standing:
    """One lab: points whose visible checks have passed, of how many, and the minutes that its header states."""

    lab: Lab
    points: float
    of: float
    minutes: int
    started: bool
    next_exercise: str
    """The first exercise with a check that has not passed, or "" if all have passed."""

    @property
    def done(self) -> bool:
        return self.points == self.of

    @property
    def minutes_left(self) -> int:
        return round(self.minutes * (1 - self.points / self.of)) if self.of else 0


def standing(lab: Lab, passed: Collection[str]) -> Standing:
    """Return the learner's standing. `passed` are the checks in the learner's record, as `exercise` or
    `exercise/part`."""
    trusted = manifest(lab, visible=True)
    remaining = [exercise.id for exercise in trusted.exercises if not set(_keys(exercise)) <= set(passed)]
    points = sum(part.points for part in trusted.parts if key(part.test) in passed)
    return Standing(lab, points, trusted.max_score, lab.minutes, lab.work.is_file(), remaining[0] if remaining else "")


def next_step(standings: Collection[Standing]) -> str:
    """Return the next step in one sentence: continue a lab that was begun, else start the first remaining lab."""
    begun = [row for row in standings if row.started and not row.done]
    if begun:
        at = begun[0]
        return f"Next: {at.next_exercise} in lab {at.lab.slug} (`threeloops lab {at.lab.slug[:2]}`)."
    new = [row for row in standings if not row.done]
    if new:
        return f"Next: lab {new[0].lab.slug}, about {new[0].minutes} minutes (`threeloops lab {new[0].lab.slug[:2]}`)."
    then = "hand in with `threeloops submit LAB`"
    if any(row.lab.has_answers for row in standings):
        then = "`threeloops check LAB --full` also tries the hidden ones"
    return f"Every visible check of every lab has passed; {then}."


def key(test: str) -> str:
    """Return the key of a test cell in the learner's record: `softmax_test_edges` is `softmax/edges`."""
    exercise, part = split_test_id(test)
    return f"{exercise}/{part}" if part else exercise


def _keys(exercise: Exercise) -> Iterator[str]:
    return map(key, exercise.tests)
