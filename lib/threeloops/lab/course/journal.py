"""The reader's own record: which checks passed and when, and what was predicted and found.

Written from a Jupyter kernel in a lab's own folder and by `threeloops check`, never in a graded run. If it cannot be
written, the course map lacks its colours and predictions are asked again, and nothing fails.
"""

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from threeloops.files import replace_text
from threeloops.lab.course.loops import labs
from threeloops.lab.widgets.display import in_kernel

__all__ = ["current_lab", "note_checked", "note_prediction", "passed", "predictions", "record"]

_VERSION = 1
_Journal = dict[str, dict[str, Any]]
"""By lab (`03_triton_fusion`) and key."""


def passed() -> dict[str, set[str]]:
    """Checks passed so far, by lab; a check is an exercise, or `exercise/part`. Empty without a readable record."""
    return {lab: set(ids) for lab, ids in _read("passed").items()}


def record(exercise: str, part: str = "") -> bool:
    """Note that a check passed, with the time of the first pass; True if it was written."""
    if not in_kernel() or "NBGRADER_EXECUTION" in os.environ:  # nbgrader sets it while it autogrades or validates
        return False
    key, now = f"{exercise}/{part}" if part else exercise, _now()
    return _write("passed", current_lab(), lambda kept: kept.setdefault(key, now))


def note_checked(lab: str, results: Mapping[str, bool]) -> bool:
    """Note what a command has found of a lab's checks: those that pass are kept, the others are not passed any more."""
    now = _now()

    def change(kept: dict[str, Any]) -> None:
        for key, holds in results.items():
            if holds:
                kept.setdefault(key, now)
            else:
                kept.pop(key, None)

    return _write("passed", lab, change)


def predictions() -> dict[str, dict[str, Any]]:
    """Predictions in the lab of this notebook, by key, with the fields that `note_prediction` was given."""
    kept = _read("predictions").get(current_lab() or "", {})
    return {key: fields for key, fields in kept.items() if type(fields) is dict}


def note_prediction(key: str, **fields: Any) -> bool:
    """Note a question, its unit, a guess, what was found; fields noted earlier stay. True if it was written."""
    if not in_kernel() or "NBGRADER_EXECUTION" in os.environ:
        return False
    return _write("predictions", current_lab(), lambda kept: kept.__setitem__(key, {**kept.get(key, {}), **fields}))


def current_lab() -> str | None:
    """The lab whose folder is the working directory, else the one whose notebook JupyterLab says this is."""
    known = {lab.name for lab in labs()}
    names = [Path.cwd().name, Path(os.environ.get("JPY_SESSION_NAME", "")).stem.removesuffix("_dives")]
    return next((name for name in names if name in known), None)


def _home() -> Path:
    """`$THREELOOPS_HOME`, or `~/.local/state/threeloops`."""
    return Path(os.environ.get("THREELOOPS_HOME") or "~/.local/state/threeloops").expanduser()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write(kind: str, lab: str | None, change: Callable[[dict[str, Any]], Any]) -> bool:
    """Apply `change` to a lab's part of a journal; True if it was written."""
    if lab is None:
        return False
    try:
        _home().mkdir(parents=True, exist_ok=True)
        with (_home() / "progress.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two notebooks may write at once: neither note may be lost
            whole = {name: _read(name) for name in ("passed", "predictions")}
            change(whole[kind].setdefault(lab, {}))
            replace_text(_home() / "progress.json", json.dumps({"version": _VERSION, **whole}, indent=1))
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory to expand
        return False
    return True


def _read(kind: str) -> _Journal:
    """An unreadable journal counts as empty."""
    try:
        found = json.loads((_home() / "progress.json").read_text(encoding="utf-8")).get(kind, {})
        return {str(lab): {str(key): kept for key, kept in keys.items()} for lab, keys in found.items()}
    except (OSError, RuntimeError, ValueError, AttributeError):
        return {}
