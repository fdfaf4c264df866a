"""Keep earlier attempts of a student: `submitted/` has the one that counts, `class/attempts/` has others."""

import hashlib
import os
import re
import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.exchange.swap import put_in_place
from threeloops_grader.classroom.exchange.times import noted_time
from threeloops_grader.classroom.register.settings import class_folder

__all__ = ["Attempt", "attempts_folder", "attempts_of", "first", "keep", "place", "read_rule"]

_RULE = re.compile(r"(last|best)|first(?: (\d+))?")


@dataclass(frozen=True)
class Attempt:
    """A student's hand-in. `time` is when it was handed in, or else when it was collected; `digest` is its notebook's
    hash, and `folder` has its files."""

    student: str
    time: datetime
    digest: str
    folder: Path

    @property
    def is_timed(self) -> bool:
        """Whether it says itself when it was handed in."""
        return noted_time(self.folder) is not None


def read_rule(text: str) -> str:
    """Return which attempts count: `last`, `best`, or `first N`, the last of the first N. Raises LabError for anything
    else."""
    match = _RULE.fullmatch(" ".join(text.split()))
    if match is None or match[2] == "0":
        raise LabError(
            f"the attempts that count are {text!r}; expected last, best, first, or first N, such as 'first 3'"
        )
    return match[1] or f"first {int(match[2] or 1)}"


def first(rule: str) -> int | None:
    """Return how many attempts may count, or None if there is no limit."""
    return int(rule.removeprefix("first ")) if rule.startswith("first ") else None


def attempts_folder(root: Path, lab: str) -> Path:
    """Return the folder of a lab's other attempts. It has nbgrader's layout, with an attempt in a student's place."""
    return class_folder(root) / "attempts" / lab


def _attempt(student: str, lab: str, folder: Path) -> Attempt | None:
    notebook = folder / f"{lab}.ipynb"
    if not notebook.is_file() or notebook.is_symlink():
        return None
    collected = datetime.fromtimestamp(notebook.stat().st_mtime, UTC).replace(tzinfo=None)
    return Attempt(student, noted_time(folder) or collected, hashlib.sha256(notebook.read_bytes()).hexdigest(), folder)


def attempts_of(root: Path, lab: str, student: str) -> list[Attempt]:
    """Return a student's attempts in the order of their times, including the current one. The same notebook with the
    same time is one attempt.

    Copies of one notebook that note no time were collected when the earliest copy was: `place` makes a copy with a
    newer file, which must not make the attempt newer.
    """
    folders = [root / "submitted" / student / lab]
    folders += [p / lab for p in sorted(attempts_folder(root, lab).glob("*+*")) if p.name.rpartition("+")[0] == student]
    attempts: dict[tuple[str, datetime | None], Attempt] = {}
    for folder in folders:
        if attempt := _attempt(student, lab, folder):
            key = attempt.digest, attempt.time if attempt.is_timed else None
            copy = attempts.setdefault(key, attempt)
            attempts[key] = replace(copy, time=min(copy.time, attempt.time))
    return sorted(attempts.values(), key=lambda attempt: (attempt.time, attempt.digest))


def keep(root: Path, lab: str, student: str, folder: Path) -> Path | None:
    """Copy a hand-in's folder to the attempts, unless it is there. Returns where it is, or None without a notebook."""
    attempt = _attempt(student, lab, folder)
    if attempt is None:
        return None
    name = f"{student}+{attempt.time:%y%m%d%H%M%S}-{attempt.digest[:6]}"
    target = attempts_folder(root, lab) / name / lab
    if not target.is_dir():
        half = target.with_name(f".{lab}.new")
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(folder, half, symlinks=True)
        half.rename(target)
    return target


def place(root: Path, lab: str, attempt: Attempt) -> None:
    """Make an attempt the one that counts. The one before it stays among the attempts.

    A command that is killed here leaves one of the two there, and the next one places the attempt again.
    """
    current = root / "submitted" / attempt.student / lab
    if attempt.folder == current:
        return
    if current.is_dir():
        keep(root, lab, attempt.student, current)
    half = current.with_name(f".{lab}.new")
    shutil.rmtree(half, ignore_errors=True)
    half.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(attempt.folder, half, symlinks=True)
    os.utime(half / f"{lab}.ipynb")  # another submission than the one that was graded
    put_in_place(half, current)
