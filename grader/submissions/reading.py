"""Submissions as they arrive: `DIR/<student>/<lab>/<lab>.ipynb`, nbgrader's own layout, read without trust."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from grader.authoring.labs import Lab, LabError
from grader.machine.faults import is_machines
from grader.submissions.folder import (
    MAX_NOTEBOOK_BYTES,
    BadSubmission,
    require_plain_files,
    require_student,
    require_timestamp,
    spelling,
    student_name,
)
from grader.submissions.parse import parse


@dataclass(frozen=True)
class Submission:
    """`student` is the folder's name as `student_name` gives it."""

    student: str
    path: Path


def find(folder: Path, lab: Lab) -> list[Submission]:
    """Every student folder, in alphabetical order; also those whose notebook is missing, so that nobody is forgotten.

    Raises:
        FileNotFoundError: `folder` does not exist or holds no student.
        LabError: two folders have names that look the same, so that their points could not be told apart.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; expected {folder}/<student>/{lab.slug}/{lab.slug}.ipynb")
    students = [p for p in sorted(folder.iterdir()) if not p.name.startswith(".") and (p.is_dir() or p.is_symlink())]
    if not students:
        raise FileNotFoundError(f"{folder} holds no student; expected {folder}/<student>/{lab.slug}/{lab.slug}.ipynb")
    found = [Submission(student_name(path.name), path / lab.slug / f"{lab.slug}.ipynb") for path in students]
    _require_distinct([path.name for path in students])
    return found


def _require_distinct(names: list[str]) -> None:
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(spelling(name), name)
        if other != name:
            raise LabError(
                f"two students' folders have names that look the same, {ascii(other)} and {ascii(name)}; "
                "rename one, or merge them if they are one person's. Nobody was graded"
            )


def read(submission: Submission, folder: Path) -> NotebookNode:
    """The submitted notebook as plain data. Raises BadSubmission as `content` and `parse` do."""
    return parse(content(submission, folder))


def content(submission: Submission, folder: Path) -> bytes:
    """The submitted file. Never opens a link, a pipe or a device, which could lead elsewhere or never end.

    Raises:
        BadSubmission: no file, a name that is no student's, a link, pipe or device, a file too large or unreadable, a
            timestamp that is no time.
        OSError: the machine cannot read files now.
    """
    require_student(submission.student)
    path = submission.path
    try:
        require_plain_files(path.parent)
        if not path.is_file():
            other = sorted(student_name(p.name) for p in path.parent.glob("*.ipynb")) if path.parent.is_dir() else []
            hint = f"; the folder holds {', '.join(other[:5])}" if other else ""
            raise BadSubmission(f"no file {path.relative_to(folder)}{hint}")
        size = path.stat().st_size
        if size > MAX_NOTEBOOK_BYTES:
            raise BadSubmission(
                f"the notebook has {size / 2**20:.0f} MiB, at most {MAX_NOTEBOOK_BYTES >> 20} are read; "
                "clear its outputs"
            )
        require_timestamp(path.parent)
        return path.read_bytes()
    except OSError as error:
        if is_machines(error):
            raise
        raise BadSubmission(f"{path.name} cannot be read: {error.strerror}; hand it in again") from None
