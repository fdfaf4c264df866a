"""Facts about outputs that a page without a kernel needs, such as the question that an output waits for.

Nothing is noted unless `$THREELOOPS_RECORD` is set, to the processor seconds that the pictures of all explorers of the
notebook may take (`states`). The notes lie in the executed notebook, in the metadata of outputs, under `KEY`.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

__all__ = ["KEY", "VARIABLE", "note", "noted", "recording"]

VARIABLE = "THREELOOPS_RECORD"
KEY = "threeloops"

_notes: list[dict[str, Any]] = []


def recording() -> bool:
    """Return whether this is the kernel of a notebook that is executed to make a page of it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return VARIABLE in os.environ and getattr(shell, "kernel", None) is not None


def noted(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of an output that is shown now, with the notes about it."""
    notes = {name: value for facts in _notes for name, value in facts.items()}
    return {**metadata, KEY: {**metadata.get(KEY, {}), **notes}} if notes else dict(metadata)


@contextmanager
def note(**facts: Any) -> Iterator[None]:
    """Note facts about all outputs that are shown inside, if this is a recording."""
    if not recording():
        yield
        return
    _notes.append(facts)
    try:
        yield
    finally:
        _notes.pop()
