"""A share of a class: `0/4` is the first of four. Which student belongs to which depends on nothing but the name."""

import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from threeloops_grader.authoring.labs import LabError

__all__ = ["Share", "equal_shares", "shares_for", "split"]

_MAX_SHARES = 10_000
_MAX_TASKS = 1000
"""Slurm's default limit of an array is 1,001."""
_FEWEST = 10
"""Submissions of a task that are worth its start."""
_MOST = 400
"""Submissions of a task that usually end before its time limit. A lost task loses only those that it is executing,
because the records of the others are kept."""
_LAST = 80
"""The last tasks are split down to so many submissions, and no further. With two at a time, 80 of lab 00 take about
five times as long as the start of their task (docs/teaching/cluster.md)."""


@dataclass(frozen=True)
class Share:
    """The share number `index`, from 0, of `count`.

    A student's share is a hash of the name. So a worker reads the submissions of its own share only, and a submission
    that arrives or changes while others work moves nobody to another share.
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Share":
        """Read `I/N`. Raises LabError for anything that is not one of N shares."""
        numbers = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip(), re.ASCII)
        if numbers is None:
            raise LabError(f"--shard {text}: expected I/N, two whole numbers such as 0/4, the first of four shares")
        index, count = map(int, numbers.groups())
        if not 1 <= count <= _MAX_SHARES:
            raise LabError(f"--shard {text}: there are {count} shares; expected 1 to {_MAX_SHARES:,}")
        if index >= count:
            last = f"{count - 1}/{count}"
            raise LabError(f"--shard {text}: shares are numbered from 0, so the last of {count} is {last}")
        return cls(index, count)

    def holds(self, student: str) -> bool:
        return _hash(student) % self.count == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def _hash(student: str) -> int:
    return int(hashlib.sha256(student.encode("utf-8", "surrogatepass")).hexdigest()[:15], 16)


def equal_shares(count: int) -> list[Share]:
    return [Share(index, count) for index in range(count)]


def shares_for(students: int, workers: int) -> list[Share]:
    """Return shares that together hold a class of `students`, in the order in which `workers` should take them.

    Every share costs the start of a task, so the first ones are large. The last ones are ever smaller, because workers
    then end at about the same time. This is factoring (Hummel, Schonberg and Flynn 1992) with shares that are known
    beforehand. A share I/N consists of I/2N and (I+N)/2N: each step keeps the first half and splits the second.
    """
    rounds = math.ceil(students / (workers * _MOST))
    count = max(1, min(rounds * workers, math.ceil(students / _FEWEST), _MAX_TASKS))
    whole = equal_shares(count)
    large = whole[:-workers]
    halved = whole[-workers:]
    while students / (2 * halved[0].count) >= _LAST and len(large) + 2 * len(halved) <= _MAX_TASKS:
        large += [Share(share.index, 2 * share.count) for share in halved]
        halved = [Share(share.index + share.count, 2 * share.count) for share in halved]
    return large + halved


def split(students: Iterable[str], shares: Sequence[Share]) -> dict[Share, list[str]]:
    """Return the students of each share, in the order of `shares`. Shares without students are left out."""
    counts = {share.count for share in shares}
    held: dict[Share, list[str]] = {share: [] for share in shares}
    for student in students:
        number = _hash(student)
        for count in counts:
            if (names := held.get(Share(number % count, count))) is not None:
                names.append(student)
    return {share: names for share, names in held.items() if names}
