"""The reader's own record of passed checks: which exercise of which lab, and when.

Written only from a Jupyter kernel in a lab's own folder, never in a graded run. If it cannot be written, the course map
lacks its colours, and nothing fails.
"""

import fcntl
import json
import os
from datetime import UTC, datetime
from pathlib import Path

from threeloops.files import replace_text
from threeloops.lab.course.loops import labs
from threeloops.lab.widgets.display import in_kernel

__all__ = ["passed", "record"]

_VERSION = 1


def _home() -> Path:
    """`$THREELOOPS_HOME`, or `~/.local/state/threeloops`."""
    return Path(os.environ.get("THREELOOPS_HOME") or "~/.local/state/threeloops").expanduser()


def passed() -> dict[str, set[str]]:
    """Exercises passed so far, by lab name (`03_triton_fusion`); empty if there is no readable record."""
    return {name: set(ids) for name, ids in _read().items()}


def record(grade_id: str) -> bool:
    """Note that a check passed; True if it was written.

    The lab is the one whose folder is the working directory, else the one whose notebook JupyterLab says this is.
    """
    if not in_kernel() or "NBGRADER_EXECUTION" in os.environ:  # nbgrader sets it while it autogrades or validates
        return False
    known = {lab.name for lab in labs()}
    try:
        names = [Path.cwd().name, Path(os.environ.get("JPY_SESSION_NAME", "")).stem]
        if (lab := next((name for name in names if name in known), None)) is None:
            return False
        _note(lab, grade_id)
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory to expand
        return False
    return True


def _note(lab: str, grade_id: str) -> None:
    """Add one passed exercise to the record, keeping the time of the first pass. Raises OSError if it cannot."""
    _home().mkdir(parents=True, exist_ok=True)
    with (_home() / "progress.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two notebooks may pass a check at once: neither pass may be lost
        known = _read()
        known.setdefault(lab, {}).setdefault(grade_id, datetime.now(UTC).isoformat(timespec="seconds"))
        replace_text(_home() / "progress.json", json.dumps({"version": _VERSION, "passed": known}, indent=1))


def _read() -> dict[str, dict[str, str]]:
    """An unreadable record counts as empty."""
    try:
        found = json.loads((_home() / "progress.json").read_text(encoding="utf-8"))["passed"]
        return {str(lab): {str(i): str(when) for i, when in ids.items()} for lab, ids in found.items()}
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError):
        return {}
