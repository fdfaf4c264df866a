"""Find submissions in `submitted/` that were not graded, or belong to nobody on the roster."""

from collections.abc import Iterable
from pathlib import Path

import nbformat

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.submissions.folder import TIMESTAMP, spelling, student_name
from threeloops_grader.submissions.reading import Submission, read
from threeloops_grader.submissions.rebuild import rebuild
from threeloops_grader.submissions.submitted import BadSubmission

__all__ = ["NOT_RUN", "is_another", "needs_grading", "not_graded", "refused_strangers", "strangers_in", "was_executed"]

NOT_RUN = "NotRun"
"""The error that a test cell of `autograded/` carries until it is executed."""


def not_graded(lab: Lab, student: str) -> tuple[str, bool]:
    """Return why a student's submission is not graded, and whether it was refused; ("", False) if it is graded, or if
    there is none.

    A submission is graded if `autograded/` has a later notebook with the same time of handing in, and its tests were
    executed. A run that is killed leaves a notebook whose tests were not.
    """
    folder = Path(lab.root, "submitted", student, lab.slug)
    graded = Path(lab.root, "autograded", student, lab.slug)
    notebook = folder / f"{lab.slug}.ipynb"
    result = graded / f"{lab.slug}.ipynb"
    if not folder.is_dir():
        return "", False
    if notebook.is_file() and not needs_grading(folder, graded, lab.slug):
        return "", False
    try:
        rebuild(read(Submission(student_name(student), notebook), folder.parent.parent), manifest(lab))
    except BadSubmission as error:
        return f"refused: {error}", True
    return "a newer submission is not graded yet" if result.is_file() else "not graded yet", False


def was_executed(notebook: Path) -> bool:
    """Return whether a notebook of `autograded/` can be read, and each of its tests was executed."""
    try:
        cells = nbformat.read(notebook, as_version=4).cells
        tests = [c for c in cells if c.metadata.get("nbgrader", {}).get("grade") and c.cell_type == "code"]
        return not any(output.get("ename") == NOT_RUN for cell in tests for output in cell.outputs)
    except Exception:  # missing or cut off: nbformat raises several unrelated types
        return False


def needs_grading(source: Path, graded: Path, lab: str) -> bool:
    """Return whether the submission in `source` still has to be graded, if its graded copy is in `graded`."""
    return not was_executed(graded / f"{lab}.ipynb") or is_another(source, graded, lab)


def is_another(source: Path, graded: Path, lab: str) -> bool:
    """Return whether the submission in `source` is not the one that was graded."""
    name = f"{lab}.ipynb"
    is_written_later = (source / name).stat().st_mtime > (graded / name).stat().st_mtime
    return is_written_later or _text(source / TIMESTAMP) != _text(graded / TIMESTAMP)


def _text(path: Path) -> bytes:
    return path.read_bytes().strip() if path.is_file() else b""


def strangers_in(lab: Lab, students: Iterable[str]) -> list[str]:
    """Return the folders of `submitted/` that hold this lab and belong to nobody in `students`."""
    return sorted(student_name(name) for name in _strangers(lab, students))


def refused_strangers(lab: Lab, students: Iterable[str]) -> dict[str, str]:
    """Return why submissions of people who are not in `students` were refused, by name."""
    reasons = {student_name(name): not_graded(lab, name) for name in _strangers(lab, students)}
    return {name: reason for name, (reason, is_refused) in sorted(reasons.items()) if is_refused}


def _strangers(lab: Lab, students: Iterable[str]) -> list[str]:
    spelled = {spelling(name) for name in students}
    names = (path.parent.name for path in Path(lab.root, "submitted").glob(f"*/{lab.slug}"))
    folders = (name for name in names if not name.startswith("."))  # .threeloops has the records of grading
    return [name for name in folders if spelling(name) not in spelled]
