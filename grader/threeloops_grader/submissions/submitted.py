"""A submitted notebook, reduced to the few fields that grading reads, each of a known type."""

from typing import Any

from threeloops_grader.authoring.labs import nested

__all__ = ["REBUILT", "BadSubmission", "NotThisLab", "essentials"]

REBUILT = "rebuilt"
"""The mark in a notebook's metadata that `rebuild` leaves there."""

_MAX_CELLS = 1000

_MAX_TAGS = 100
_ROLE = ("grade", "grade_id", "locked", "points", "schema_version", "solution", "task")


class BadSubmission(Exception):
    """This student's file cannot be graded. The message says why and what to hand in instead."""


class NotThisLab(BadSubmission):
    """The file is a notebook, but not a submission of this lab."""


def essentials(notebook: Any) -> dict[str, Any]:
    """Return the text, type, id, tags and nbgrader metadata of each cell, and the lab's name.

    Raises:
        NotThisLab: more than MAX_CELLS cells.
    """
    essential: dict[str, Any] = {
        "metadata": {"threeloops": _pick(nested(notebook, "metadata", "threeloops"), ("lab", REBUILT), str)}
    }
    if isinstance(cells := nested(notebook, "cells"), list):
        if len(cells) > _MAX_CELLS:
            raise NotThisLab(f"{len(cells):,} cells; at most {_MAX_CELLS:,} are read: delete some and submit again")
        essential["cells"] = [_cell(cell) for cell in cells if isinstance(cell, dict)]
    return essential


def _cell(cell: dict[str, Any]) -> dict[str, Any]:
    picked = _pick(cell, ("id", "cell_type"), str)
    source = cell.get("source")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    if isinstance(source, str):
        # A JSON string may hold half a character (an escaped surrogate), which no file and no interpreter takes.
        picked["source"] = source.encode("utf-8", "replace").decode()
    metadata: dict[str, Any] = {}
    if isinstance(tags := nested(cell, "metadata", "tags"), list):
        metadata["tags"] = [tag for tag in tags[:_MAX_TAGS] if isinstance(tag, str)]
    if isinstance(role := nested(cell, "metadata", "nbgrader"), dict):
        metadata["nbgrader"] = _pick(role, _ROLE, str, bool, int, float)
    return {**picked, "metadata": metadata}


def _pick(data: Any, keys: tuple[str, ...], *types: type) -> dict[str, Any]:
    return {key: value for key in keys if isinstance(value := nested(data, key), types)}
