"""A share of a class: `0/4` is the first of four. Which student belongs to which depends on nothing but the name."""

import hashlib
import math
import re
from dataclasses import dataclass

from threeloops_grader.authoring.labs import LabError

__all__ = ["Share", "share_of", "tasks_for"]

_MAX_SHARES = 10_000
_MAX_TASKS = 1000
"""Slurm's default limit of an array is 1,001."""
_PER_WORKER = 8
"""A worker gets several tasks, because the last ones then end at about the same time."""
_PER_TASK = (10, 50)
"""Submissions of a task: enough to be worth its start, and few enough to be lost without much harm."""


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
        return share_of(student, self.count) == self.index

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def share_of(student: str, count: int) -> int:
    """Return the number of the share that a student belongs to."""
    return int(hashlib.sha256(student.encode("utf-8", "surrogatepass")).hexdigest()[:15], 16) % count


def tasks_for(students: int, workers: int) -> int:
    """Return the number of tasks for a class of `students`, of which `workers` run at the same time."""
    few, many = _PER_TASK
    wanted = max(_PER_WORKER * workers, math.ceil(students / many))
    return max(1, min(wanted, math.ceil(students / few), _MAX_TASKS))
