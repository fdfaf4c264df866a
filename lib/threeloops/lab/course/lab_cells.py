"""Tell the lab's cells from the reader's, by the files that their code is compiled under."""

import json
import linecache
import os
from functools import lru_cache
from pathlib import Path

from threeloops.lab.course import journal
from threeloops.lab.widgets.display import in_kernel

__all__ = ["OF_LAB", "is_of_lab"]

OF_LAB = "<lab "
"""The beginning of the file names that graded runs give to setup cells."""


def is_of_lab(file: str) -> bool:
    """Return whether code of this file stands in a cell of the lab, such as a setup cell.

    In a notebook, the text of the cell decides: it is the lab's if the notebook on disk has the same text in a cell
    that the lab has locked or marked as its own. If the notebook cannot be read, the cell counts as the reader's.
    """
    if file.startswith(OF_LAB):
        return True
    text = "".join(linecache.getlines(file)).strip() if in_kernel() else ""
    return bool(text) and text in _texts()


def _texts() -> frozenset[str]:
    """Return the texts of the lab's own cells in this notebook."""
    lab = journal.current_lab()
    places = (Path.cwd() / os.environ.get("JPY_SESSION_NAME", ""), Path.cwd() / f"{lab}.ipynb")
    path = next((path for path in places if path.suffix == ".ipynb" and path.is_file()), None)
    return frozenset() if path is None else _texts_in(path, path.stat().st_mtime_ns)


@lru_cache(4)
def _texts_in(path: Path, _modified: int) -> frozenset[str]:
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return frozenset("".join(cell["source"]).strip() for cell in cells if _is_locked(cell["metadata"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return frozenset()


def _is_locked(metadata: dict) -> bool:
    tags = metadata.get("tags", ())
    marked = bool(metadata.get("nbgrader", {}).get("locked")) or "setup" in tags or "demo" in tags
    return marked and not metadata.get("nbgrader", {}).get("solution")
