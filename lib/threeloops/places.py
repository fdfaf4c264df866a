"""Locate a user's files, list all files of a folder or fail, and name files of source text in messages."""

import os
from pathlib import Path
from typing import Literal

__all__ = ["RECORD", "base_folder", "below", "is_cell", "record_folder", "source_name"]

RECORD = "progress.json"
"""The file in `record_folder` that holds a learner's passed checks and predictions."""
_BASES = {"cache": "~/.cache", "data": "~/.local/share", "state": "~/.local/state"}


def base_folder(kind: Literal["cache", "data", "state"]) -> Path:
    """Return a base folder of this user by the XDG Base Directory Specification, such as `$XDG_STATE_HOME`.

    The specification asks programs to ignore a relative path in the variable. Raises RuntimeError if the default is
    needed and there is no home folder.
    """
    named = Path(os.environ.get(f"XDG_{kind.upper()}_HOME", ""))
    return named if named.is_absolute() else Path(_BASES[kind]).expanduser()


def record_folder() -> Path:
    """Return the folder of a learner's record.

    It is `$THREELOOPS_HOME` if that is set, and `threeloops` in `$XDG_STATE_HOME` or `~/.local/state` if not.

    Releases that did not know XDG_STATE_HOME wrote to `~/.local/state`. A record there is used until there is another.
    Raises RuntimeError as `base_folder` does.
    """
    if named := os.environ.get("THREELOOPS_HOME"):
        return Path(named).expanduser()
    folder, before = (base / "threeloops" for base in (base_folder("state"), Path(os.path.expanduser(_BASES["state"]))))
    return before if (before / RECORD).exists() and not (folder / RECORD).exists() else folder


def below(folder: Path) -> list[Path]:
    """Return all files and folders below `folder`, sorted, or none if there is no such folder.

    Raises OSError if one of the folders cannot be listed. `Path.rglob` leaves it out instead, from Python 3.13 on.
    """

    def fail(error: OSError) -> None:
        raise error

    levels = os.walk(folder, onerror=fail) if folder.exists() else ()
    return sorted(Path(parent, name) for parent, folders, files in levels for name in (*folders, *files))


def is_cell(file: str) -> bool:
    """Return whether a file of source text is a cell of a notebook, or another text whose name no reader knows.

    Jupyter compiles a cell under the name of a temporary file that need not exist.
    """
    return file.startswith("<") or "ipykernel" in file


def source_name(file: str) -> str:
    """Return the name of a file of source text for a message, without its folder: `train.py`, or `cell`."""
    return "cell" if is_cell(file) else file.replace("\\", "/").rsplit("/", 1)[-1]
