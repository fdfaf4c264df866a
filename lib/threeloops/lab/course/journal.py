"""The reader's own record: which checks pass and since when, and what was predicted and measured.

A Jupyter kernel in a lab's own folder writes it, and so does `threeloops check`, but never a graded run. If the record
cannot be written, nothing fails: the course map has no colours, and the notebooks ask for predictions again.

All records of a user are in one file (`places.record_folder`). Each record belongs to a folder that contains labs, such
as `work/` of one checkout. So two copies of the course on one machine do not count each other's points.
"""

import fcntl
import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from threeloops.lab.course.loops import labs
from threeloops.lab.widgets.display import in_kernel
from threeloops.places import RECORD, record_folder

__all__ = [
    "current_lab", "forget", "note_checked", "note_prediction", "passed", "predictions", "record",
]  # fmt: skip

_VERSION = 2
_Journal = dict[str, dict[str, dict[str, Any]]]
"""Entries by kind (`passed`, `predictions`), lab (`03_triton_fusion`) and key."""
_KINDS = ("passed", "predictions")
_ANY_FOLDER = ""
"""The key of a record of version 1, which knew no folders. The first folder that writes takes the record over."""


def passed(folder: Path | None = None) -> dict[str, set[str]]:
    """Return the checks that passed when they last ran, by lab. A check is an exercise, or `exercise/part`.

    `folder` is the folder that contains the labs' folders. By default it is that of this notebook. The result is empty
    without a readable record.
    """
    return {lab: set(ids) for lab, ids in _read(folder or _here())["passed"].items()}


def record(exercise: str, part: str = "") -> bool:
    """Note that a check passes, and since when. Returns True if that was written."""
    now = _now()
    return _note_here("passed", lambda entries: entries.setdefault(_key(exercise, part), now))


def forget(exercise: str, part: str = "") -> bool:
    """Note that a check no longer passes. Returns True if it did pass before, and the change was written."""
    if not _is_worked_in() or _key(exercise, part) not in passed().get(current_lab() or "", set()):
        return False  # most checks of a new lab fail: nothing is written for them
    return _note_here("passed", lambda entries: entries.pop(_key(exercise, part), None))


def note_checked(folder: Path, lab: str, results: Mapping[str, bool]) -> bool:
    """Record a command's results for a lab's checks: those that pass are kept, and the others no longer count as
    passed."""
    now = _now()

    def change(entries: dict[str, Any]) -> None:
        for key, holds in results.items():
            if holds:
                entries.setdefault(key, now)
            else:
                entries.pop(key, None)

    return _write(folder, "passed", lab, change)


def predictions() -> dict[str, dict[str, Any]]:
    """Predictions in the lab of this notebook, by key, with the fields that `note_prediction` was given."""
    entries = _read(_here())["predictions"].get(current_lab() or "", {})
    return {key: fields for key, fields in entries.items() if type(fields) is dict}


def note_prediction(key: str, **fields: Any) -> bool:
    """Record a question, its unit, a guess, and the result. Fields recorded earlier stay. Returns True if it was
    written."""
    return _note_here("predictions", lambda entries: entries.__setitem__(key, {**entries.get(key, {}), **fields}))


def current_lab() -> str | None:
    """The lab whose folder is the working directory, else the one whose notebook JupyterLab says this is."""
    session = Path.cwd() / os.environ.get("JPY_SESSION_NAME", "")
    places = [(Path.cwd().name, Path.cwd()), (session.stem.removesuffix("_dives"), session.parent)]
    return next((name for name, folder in places if _is_lab(name, folder)), None)


def _is_lab(name: str, folder: Path) -> bool:
    """Whether it is a lab on the map of the course, or one that somebody else has written."""
    own = re.fullmatch(r"\d\d_[a-z][a-z0-9_]*", name) and (folder / f"{name}.ipynb").is_file()
    return bool(own) or name in {lab.name for lab in labs()}


def _here() -> Path:
    """The folder that this notebook's lab lies in."""
    lab = current_lab()
    notebook = Path.cwd() / os.environ.get("JPY_SESSION_NAME", "")
    place = Path.cwd() if Path.cwd().name == lab else notebook.parent
    return place.parent if place.name == lab else place


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _key(exercise: str, part: str) -> str:
    return f"{exercise}/{part}" if part else exercise


def _is_worked_in() -> bool:
    """Whether this is a notebook, and not one that nbgrader executes: it sets the variable for its own runs."""
    return in_kernel() and "NBGRADER_EXECUTION" not in os.environ


def _note_here(kind: str, change: Callable[[dict[str, Any]], Any]) -> bool:
    """`_write` for the lab of this notebook."""
    lab = current_lab()
    return lab is not None and _is_worked_in() and _write(_here(), kind, lab, change)


def _write(folder: Path, kind: str, lab: str, change: Callable[[dict[str, Any]], Any]) -> bool:
    """Apply `change` to a lab's part of a folder's journal; True if it was written."""
    from threeloops.files import replace_text  # withheld in graded runs of lab 13, which write no journal

    try:
        record_folder().mkdir(parents=True, exist_ok=True)
        with (record_folder() / "progress.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two notebooks may write at once: neither note may be lost
            courses, mine = _read_all(), _read(folder)
            change(mine[kind].setdefault(lab, {}))
            courses.pop(_ANY_FOLDER, None)
            courses[os.path.realpath(folder)] = mine
            replace_text(record_folder() / RECORD, json.dumps({"version": _VERSION, "courses": courses}, indent=1))
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory to expand
        return False
    return True


def _read(folder: Path) -> _Journal:
    """A folder's journal; an unreadable one counts as empty."""
    courses = _read_all()
    return courses.get(os.path.realpath(folder)) or courses.get(_ANY_FOLDER) or _journal({})


def _read_all() -> dict[str, _Journal]:
    try:
        data = json.loads((record_folder() / RECORD).read_text(encoding="utf-8"))
        courses = data.get("courses", {_ANY_FOLDER: data})
        return {str(folder): _journal(course) for folder, course in courses.items()}
    except (OSError, RuntimeError, ValueError, AttributeError, TypeError):
        return {}


def _journal(data: dict[str, Any]) -> _Journal:
    """Read the journal. Raises AttributeError if it is not a journal."""
    return {kind: {str(lab): dict(keys.items()) for lab, keys in data.get(kind, {}).items()} for kind in _KINDS}
