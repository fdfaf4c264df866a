"""Read submissions in nbgrader's own layout, `DIR/<student>/<lab>/<lab>.ipynb`, without trust."""

from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.machine.faults import is_machines
from threeloops_grader.submissions.folder import (
    require_plain_files,
    require_small_notebook,
    require_student,
    require_timestamp,
    spelling,
    student_name,
)
from threeloops_grader.submissions.parse import parse
from threeloops_grader.submissions.submitted import BadSubmission

__all__ = ["Submission", "content", "find", "read"]


@dataclass(frozen=True)
class Submission:
    """`student` is the folder's name as `student_name` gives it."""

    student: str
    path: Path


def find(folder: Path, lab: Lab) -> list[Submission]:
    """Return every student folder, in alphabetical order, including those without a notebook, so that nobody is
    forgotten.

    Raises:
        FileNotFoundError: `folder` does not exist or holds no student.
        LabError: two folders have names that look the same, so that their points could not be told apart.
    """
    expected = f"expected {folder}/<student>/{lab.slug}/{lab.slug}.ipynb"
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; {expected}")
    students = [p for p in sorted(folder.iterdir()) if not p.name.startswith(".") and (p.is_dir() or p.is_symlink())]
    if not students:
        raise FileNotFoundError(f"{folder} holds no student; {expected}")
    names: dict[str, str] = {}
    for path in students:
        other = names.setdefault(spelling(path.name), path.name)
        if other != path.name:
            raise LabError(
                f"two students' folders have names that look the same, {ascii(other)} and {ascii(path.name)}; "
                "rename one, or merge them if they are one person's. Nobody was graded"
            )
    return [Submission(student_name(path.name), path / lab.slug / f"{lab.slug}.ipynb") for path in students]


def read(submission: Submission, folder: Path) -> NotebookNode:
    """Return the submitted notebook as plain data. Raises BadSubmission as `content` and `parse` do."""
    return parse(content(submission, folder))


def content(submission: Submission, folder: Path) -> bytes:
    """Return the submitted file. Never opens a link, a pipe or a device, which could lead elsewhere or never end.

    Raises:
        BadSubmission: the file is missing, too large or unreadable; the name cannot be a student's; the folder holds a
            link, a pipe, a device, or a timestamp that is not a time.
        OSError: the machine cannot read files now.
    """
    require_student(submission.student)
    path = submission.path
    try:
        require_plain_files(path.parent)
        if not path.is_file():
            others = sorted(student_name(p.name) for p in path.parent.glob("*.ipynb"))
            hint = f"; the folder holds {', '.join(others[:5])}" if others else ""
            raise BadSubmission(f"no file {path.relative_to(folder)}{hint}")
        require_small_notebook(path.stat().st_size)
        require_timestamp(path.parent)
        return path.read_bytes()
    except OSError as error:
        if is_machines(error):
            raise
        raise BadSubmission(f"{path.name} cannot be read: {error.strerror}; hand it in again") from None
