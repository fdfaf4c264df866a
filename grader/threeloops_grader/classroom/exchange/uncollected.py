"""Remember who handed in a file from which no notebook could be collected, until one is collected from them."""

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from threeloops.files import replace_text

from threeloops_grader.authoring.labs import LabError
from threeloops_grader.classroom.register.settings import class_folder
from threeloops_grader.submissions.folder import spelling

__all__ = ["forget_collected", "note_uncollected", "uncollected"]


def note_uncollected(root: Path, lab: str, reasons: Mapping[str, str]) -> None:
    """Remember why nothing was collected from these students, in the place of earlier reasons."""
    if reasons:
        now = {student: [reason, time.time()] for student, reason in reasons.items()}
        _write(root, lab, {**_read(root, lab), **now})


def forget_collected(root: Path, lab: str, students: Iterable[str]) -> None:
    """Forget the reasons of students from whom a notebook was collected."""
    before = _read(root, lab)
    after = {student: entry for student, entry in before.items() if student not in set(students)}
    if after != before:
        _write(root, lab, after)


def uncollected(root: Path, lab: str) -> dict[str, str]:
    """Return why nothing was collected from students, by the spelling of their ids, unless a notebook has arrived in
    `submitted/` since, also from elsewhere. Raises LabError if the file was damaged."""
    reasons = {}
    for student, (reason, noted) in _read(root, lab).items():
        notebook = root / "submitted" / student / lab / f"{lab}.ipynb"
        if not notebook.is_file() or notebook.stat().st_ctime < noted:
            reasons[spelling(student)] = reason
    return reasons


def _path(root: Path, lab: str) -> Path:
    return class_folder(root) / f"uncollected_{lab}.json"


def _read(root: Path, lab: str) -> dict[str, tuple[str, float]]:
    path = _path(root, lab)
    try:
        return {name: (str(reason), float(at)) for name, (reason, at) in json.loads(path.read_text("utf-8")).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError) as error:
        raise LabError(f"{path} is damaged ({error!r}); delete it, and collect again") from None


def _write(root: Path, lab: str, entries: Mapping[str, object]) -> None:
    path = _path(root, lab)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(entries, indent=1) + "\n")
