"""A submitted notebook as plain data. What it may cost is bounded before anything is built from it."""

from __future__ import annotations

import json
import re
from typing import Any

import nbformat
from nbformat import NotebookNode

from grader.authoring.manifest import MAX_CELLS
from grader.submissions.folder import MAX_NOTEBOOK_BYTES, BadSubmission

MAX_VALUES = 1_000_000
MAX_CONTAINERS = 200_000

_MAX_TAGS = 100
_ROLE = ("grade", "grade_id", "locked", "points", "schema_version", "solution", "task")
_SCALARS = (str, int, float, bool)
# A string, to its end or the end of the file, or what opens or separates values. No part is ever tried twice.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.?+)*+(?:"|\Z)|[\[{,]', re.DOTALL)


def parse(content: bytes) -> NotebookNode:
    """Notebook bytes as data; only JSON is required here, the rest is judged against the manifest.

    Only what grading reads is kept: the text, type, id, tags and nbgrader metadata of each cell, and the lab's name.

    Raises:
        BadSubmission: too large, not JSON, or not a JSON object.
    """
    if len(content) > MAX_NOTEBOOK_BYTES:
        limit = MAX_NOTEBOOK_BYTES >> 20
        raise BadSubmission(
            f"the notebook has {len(content) / 2**20:.0f} MiB, at most {limit} are read; clear its outputs"
        )
    if not content.strip():
        raise BadSubmission("the file is empty; save the notebook again and hand it in")
    _require_few_values(content)
    try:
        # As UTF-8 and nothing else: the bytes were counted as such, and in UTF-16 half a character looks like a quote.
        data = json.loads(content.decode("utf-8-sig", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise BadSubmission(f"the file is not JSON ({error}): not a notebook, or one that was cut off") from None
    if not isinstance(data, dict):
        raise BadSubmission(f"the file holds a JSON {type(data).__name__}, not a notebook")
    return nbformat.from_dict(_essentials(data))


def _require_few_values(content: bytes) -> None:
    """Count values without building any. An object costs a hundred times the two bytes that it is written in."""
    values = containers = 0
    for token in _TOKEN.finditer(content):
        first = content[token.start()]
        if first == ord('"'):
            continue
        values += 1
        containers += first != ord(",")
        if values > MAX_VALUES or containers > MAX_CONTAINERS:
            raise BadSubmission(
                f"the file is not JSON that grading reads: it holds more than {MAX_CONTAINERS:,} lists and objects, or "
                f"{MAX_VALUES:,} values; clear the notebook's outputs and hand it in again"
            )


def _essentials(data: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {"metadata": {"threeloops": _scalars(_of(data, "metadata", "threeloops"), ("lab",))}}
    if isinstance(cells := data.get("cells"), list):
        if len(cells) > MAX_CELLS:
            raise BadSubmission(f"{len(cells):,} cells; at most {MAX_CELLS:,} are read: delete some and submit again")
        kept["cells"] = [_cell(cell) for cell in cells if isinstance(cell, dict)]
    return kept


def _cell(cell: dict[str, Any]) -> dict[str, Any]:
    kept = _scalars(cell, ("id", "cell_type"))
    source = cell.get("source")
    if isinstance(source, (str, list)):
        kept["source"] = source if isinstance(source, str) else "".join(s for s in source if isinstance(s, str))
    metadata: dict[str, Any] = {}
    if isinstance(tags := _of(cell, "metadata", "tags"), list):
        metadata["tags"] = [tag for tag in tags[:_MAX_TAGS] if isinstance(tag, str)]
    if isinstance(role := _of(cell, "metadata", "nbgrader"), dict):
        metadata["nbgrader"] = _scalars(role, _ROLE)
    return {**kept, "metadata": metadata}


def _of(data: dict[str, Any], first: str, second: str) -> Any:
    inner = data.get(first)
    return inner.get(second) if isinstance(inner, dict) else None


def _scalars(data: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    return {k: data[k] for k in keys if isinstance(data.get(k), _SCALARS)} if isinstance(data, dict) else {}
