"""Find submissions in `submitted/` that were not graded, or belong to nobody on the roster."""

from collections.abc import Iterable
from pathlib import Path

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.submissions.folder import TIMESTAMP, spelling, student_name
from threeloops_grader.submissions.reading import Submission, read
from threeloops_grader.submissions.rebuild import rebuild
from threeloops_grader.submissions.submitted import BadSubmission

__all__ = ["not_graded", "strangers_in"]


def not_graded(lab: Lab, student: str) -> tuple[str, bool]:
    """Return why a student's submission is not graded, and whether it was refused; ("", False) if it is graded, or if
    there is none.

    A submission is graded if `autograded/` has a later notebook with the same time of handing in.
    """
    folder = Path(lab.root, "submitted", student, lab.slug)
    graded = Path(lab.root, "autograded", student, lab.slug)
    notebook = folder / f"{lab.slug}.ipynb"
    result = graded / f"{lab.slug}.ipynb"
    if not folder.is_dir():
        return "", False
    has_both = result.is_file() and notebook.is_file()
    if has_both and _time(folder) == _time(graded) and notebook.stat().st_mtime <= result.stat().st_mtime:
        return "", False
    try:
        rebuild(read(Submission(student_name(student), notebook), folder.parent.parent), manifest(lab))
    except BadSubmission as error:
        return f"refused: {error}", True
    return "a newer submission is not graded yet" if result.is_file() else "not graded yet", False


def _time(folder: Path) -> str:
    stamp = folder / TIMESTAMP
    return stamp.read_text(encoding="ascii", errors="replace").strip() if stamp.is_file() else ""


def strangers_in(lab: Lab, students: Iterable[str]) -> list[str]:
    """Return the folders of `submitted/` that hold this lab and belong to nobody in `students`."""
    spelled = {spelling(name) for name in students}
    names = (path.parent.name for path in Path(lab.root, "submitted").glob(f"*/{lab.slug}"))
    return sorted(student_name(name) for name in names if spelling(name) not in spelled)
